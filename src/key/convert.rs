//! What a [`Key`] can be made from.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use uuid::Uuid;

use super::{INLINE, Key};

// Not one implementation for all that can be read as bytes: a UUID can, and its key is its text.

macro_rules! from_texts {
    ($($type:ty),* $(,)?) => {$(
        impl From<$type> for Key {
            fn from(text: $type) -> Self {
                Self::new(text.as_bytes())
            }
        }
    )*};
}

from_texts!(&str, &&str, String, &String, Box<str>, &Box<str>, Arc<str>, &Arc<str>);
from_texts!(Cow<'_, str>, &Cow<'_, str>);

macro_rules! from_bytes {
    ($($type:ty),* $(,)?) => {$(
        impl From<$type> for Key {
            fn from(bytes: $type) -> Self {
                Self::new(&bytes[..])
            }
        }
    )*};
}

from_bytes!(&[u8], &&[u8], Vec<u8>, &Vec<u8>, Box<[u8]>, &Box<[u8]>, Arc<[u8]>, &Arc<[u8]>);
from_bytes!(Cow<'_, [u8]>, &Cow<'_, [u8]>, Bytes, &Bytes);

impl<const N: usize> From<[u8; N]> for Key {
    fn from(bytes: [u8; N]) -> Self {
        Self::new(bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::new(bytes)
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

// Not those of 8 bits: `Key::from(b'7')` would be `55`.
macro_rules! from_integers {
    ($($type:ty),*) => {$(
        impl From<$type> for Key {
            /// Returns the key of the decimal digits.
            fn from(number: $type) -> Self {
                Self::new(itoa::Buffer::new().format(number))
            }
        }

        impl From<&$type> for Key {
            /// Returns the key of the decimal digits.
            fn from(number: &$type) -> Self {
                Self::from(*number)
            }
        }
    )*};
}

from_integers!(u16, u32, u64, u128, usize, i16, i32, i64, i128, isize);

macro_rules! from_displayed {
    ($($type:ty, $value:ident => $shown:expr;)*) => {$(
        impl From<$type> for Key {
            fn from($value: $type) -> Self {
                shown($shown)
            }
        }

        impl From<&$type> for Key {
            fn from(value: &$type) -> Self {
                Self::from(*value)
            }
        }
    )*};
}

from_displayed! {
    Ipv4Addr, ip => format_args!("{ip}");
    Uuid, uuid => format_args!("{}", uuid.hyphenated());
}

impl From<Ipv6Addr> for Key {
    /// Returns the key of the address's /64, the smallest network that a customer is given, or of
    /// the IPv4 address that is mapped into it.
    fn from(ip: Ipv6Addr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::from(ip),
            IpAddr::V6(ip) => {
                let net = Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64);
                shown(format_args!("{net}/64"))
            }
        }
    }
}

impl From<IpAddr> for Key {
    /// Returns the key of an IPv4 address, or of an IPv6 address's /64.
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::from(ip),
            IpAddr::V6(ip) => Self::from(ip),
        }
    }
}

impl From<SocketAddr> for Key {
    /// Returns the key of the IP address, whatever the port.
    fn from(address: SocketAddr) -> Self {
        Self::from(address.ip())
    }
}

macro_rules! from_references {
    ($($type:ty),*) => {$(
        impl From<&$type> for Key {
            fn from(value: &$type) -> Self {
                Self::from(*value)
            }
        }
    )*};
}

from_references!(Ipv6Addr, IpAddr, SocketAddr);

/// Returns the key of a short text, without an allocation for one that a key holds inline.
fn shown(text: fmt::Arguments<'_>) -> Key {
    struct Inline(SmallVec<[u8; INLINE]>);
    impl Write for Inline {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    let mut inline = Inline(SmallVec::new());
    // Neither the types nor the buffer can fail.
    let _ = inline.write_fmt(text);
    Key::new(inline.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_bytes_are_kept_as_they_are() {
        let text = "alice";
        for key in [
            Key::from(text),
            Key::from(&text),
            Key::from(text.to_owned()),
            Key::from(&text.to_owned()),
            Key::from(Box::<str>::from(text)),
            Key::from(Arc::<str>::from(text)),
            Key::from(Cow::from(text)),
            Key::from(text.as_bytes()),
            Key::from(text.as_bytes().to_vec()),
            Key::from(*b"alice"),
            Key::from(b"alice"),
            Key::from(Bytes::from(text)),
            Key::from(&Key::from(text)),
        ] {
            assert_eq!(key.as_bytes(), b"alice");
        }
    }

    #[test]
    fn numbers_are_their_digits() {
        assert_eq!(Key::from(0_u64).as_bytes(), b"0");
        assert_eq!(Key::from(u64::MAX).as_bytes(), b"18446744073709551615");
        assert_eq!(Key::from(&-7_i64).as_bytes(), b"-7");
        assert_eq!(Key::from(7), Key::from(7_u32));
    }

    #[test]
    fn a_uuid_is_its_text() {
        let uuid = Uuid::from_u128(0xA1A2_A3A4_B1B2_C1C2_D1D2_D3D4_D5D6_D7D8);
        assert_eq!(Key::from(uuid).as_bytes(), b"a1a2a3a4-b1b2-c1c2-d1d2-d3d4d5d6d7d8");
        assert_eq!(Key::from(&uuid), Key::from(uuid));
    }

    #[test]
    fn an_address_is_printable() {
        let key = |ip: &str| Key::from(ip.parse::<IpAddr>().unwrap());
        assert_eq!(key("203.0.113.7").as_bytes(), b"203.0.113.7");
        assert_eq!(key("::ffff:203.0.113.7").as_bytes(), b"203.0.113.7");
        assert_eq!(key("2001:db8:0:1::7").as_bytes(), b"2001:db8:0:1::/64");
        assert_eq!(key("2001:db8:0:1:2:3:4:5").as_bytes(), b"2001:db8:0:1::/64");
        assert_eq!(key("::1").as_bytes(), b"::/64");
        let longest = key("2001:1db8:1000:1111:2222:3333:4444:5555");
        assert!(!longest.0.spilled(), "no allocation");
        let socket: SocketAddr = "[2001:db8:0:1::7]:443".parse().unwrap();
        assert_eq!(Key::from(socket), key("2001:db8:0:1::7"));
    }
}
