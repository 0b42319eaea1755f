//! [`Networks`]: how much of an address is its key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Key;

const IPV4_BITS: u8 = Ipv4Addr::BITS as u8;
const IPV6_BITS: u8 = Ipv6Addr::BITS as u8;

/// The lengths of the networks that addresses are counted by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks {
    ipv4: u8,
    ipv6: u8,
}

impl Networks {
    /// A /64 is the smallest IPv6 network that a provider assigns to a customer.
    pub(super) const DEFAULT: Self = Self { ipv4: IPV4_BITS, ipv6: 64 };

    pub(super) const fn ipv4(self, length: u8) -> Result<Self, PrefixLengthError> {
        match length {
            1..=IPV4_BITS => Ok(Self { ipv4: length, ..self }),
            _ => Err(PrefixLengthError { version: 4, length, longest: IPV4_BITS }),
        }
    }

    pub(super) const fn ipv6(self, length: u8) -> Result<Self, PrefixLengthError> {
        match length {
            1..=IPV6_BITS => Ok(Self { ipv6: length, ..self }),
            _ => Err(PrefixLengthError { version: 6, length, longest: IPV6_BITS }),
        }
    }

    /// Returns the key of an address. An IPv4-mapped address counts as the IPv4 address.
    pub(super) fn key(self, address: IpAddr) -> Key {
        let length = |ip: &IpAddr| if ip.is_ipv4() { self.ipv4 } else { self.ipv6 };
        match address.to_canonical() {
            IpAddr::V4(ip) if self.ipv4 == IPV4_BITS => Key::of_text(format_args!("{ip}")),
            ip => Key::of_text(format_args!("{}", IpNet::new_assert(ip, length(&ip)).trunc())),
        }
    }
}

/// The error of the length of a network that an address can't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "/{length} is not the length of an IPv{version} network: it is 1 to {longest}, and 0 would count \
     all clients as one"
)]
pub struct PrefixLengthError {
    version: u8,
    length: u8,
    longest: u8,
}
