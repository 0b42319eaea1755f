//! The conversions into a [`Key`].

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::Key;
use super::network::Networks;

// There is no generic implementation for `AsRef<[u8]>`: it would include `Uuid`, whose key is its text.
//
// `#[diagnostic::on_unimplemented]` would have to be on `Into`, which belongs to std. If a type does not
// convert into a key, the compiler lists at most eight types that do. So
// `#[diagnostic::do_not_recommend]` removes all but the most useful types from the list.

/// Implements `From` for types that the compiler lists.
macro_rules! key_from {
    ($($type:ty, |$value:ident| $key:expr;)*) => {$(
        impl From<$type> for Key {
            fn from($value: $type) -> Self {
                $key
            }
        }
    )*};
}

/// Implements `From` for types that the compiler does not list.
macro_rules! unlisted_key_from {
    ($([$($type:ty),*], |$value:ident| $key:expr;)*) => {$($(
        #[diagnostic::do_not_recommend]
        impl From<$type> for Key {
            fn from($value: $type) -> Self {
                $key
            }
        }
    )*)*};
}

key_from! {
    &str, |text| Self::new(text.as_bytes());
    &[u8], |bytes| Self::new(bytes);
    String, |text| Self::new(text.as_bytes());
    Vec<u8>, |bytes| Self::new(&bytes[..]);
    Bytes, |bytes| Self::new(&bytes[..]);
    u64, |number| digits(number);
    IpAddr, |ip| Networks::DEFAULT.key(ip);
    Uuid, |uuid| Self::of_text(format_args!("{}", uuid.hyphenated()));
}

unlisted_key_from! {
    [&&str, &String, Box<str>, &Box<str>, Arc<str>, &Arc<str>, Cow<'_, str>, &Cow<'_, str>],
        |text| Self::new(text.as_bytes());
    [&&[u8], &Vec<u8>, Box<[u8]>, &Box<[u8]>, Arc<[u8]>, &Arc<[u8]>, &Bytes],
        |bytes| Self::new(&bytes[..]);
    [Cow<'_, [u8]>, &Cow<'_, [u8]>], |bytes| Self::new(&bytes[..]);
    // Without 8-bit integers: `Key::from(b'7')` would be `55`.
    [u16, u32, u128, usize, i16, i32, i64, i128, isize], |number| digits(number);
    [&u16, &u32, &u64, &u128, &usize, &i16, &i32, &i64, &i128, &isize], |number| digits(*number);
    [Ipv4Addr, Ipv6Addr], |ip| Self::from(IpAddr::from(ip));
    // Without the port.
    [SocketAddr], |address| Self::from(address.ip());
    [&Ipv4Addr, &Ipv6Addr, &IpAddr, &SocketAddr, &Uuid], |value| Self::from(*value);
    [&Key], |key| key.clone();
}

#[diagnostic::do_not_recommend]
impl<const N: usize> From<[u8; N]> for Key {
    fn from(bytes: [u8; N]) -> Self {
        Self::new(bytes)
    }
}

#[diagnostic::do_not_recommend]
impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::new(bytes)
    }
}

fn digits(number: impl itoa::Integer) -> Key {
    Key::new(itoa::Buffer::new().format(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_unchanged() {
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
    fn numbers_and_uuids_are_their_text() {
        assert_eq!(Key::from(0_u64).as_bytes(), b"0");
        assert_eq!(Key::from(u64::MAX).as_bytes(), b"18446744073709551615");
        assert_eq!(Key::from(&-7_i64).as_bytes(), b"-7");
        assert_eq!(Key::from(7), Key::from(7_u32));
        let uuid = Uuid::from_u128(0xA1A2_A3A4_B1B2_C1C2_D1D2_D3D4_D5D6_D7D8);
        assert_eq!(Key::from(uuid).as_bytes(), b"a1a2a3a4-b1b2-c1c2-d1d2-d3d4d5d6d7d8");
        assert_eq!(Key::from(&uuid), Key::from(uuid));
    }

    #[test]
    fn address_is_its_text() {
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
