//! [`Key`], and the types that convert into it.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use uuid::Uuid;

use super::ip::Networks;

/// The length of the longest key that is not hashed, in bytes.
const LONGEST_KEY: usize = 128;
/// The length up to which a key needs no allocation: a UUID as text, an address, a hash.
const INLINE: usize = 40;
/// The prefix of a hashed key. A shorter key with this prefix is hashed too, so that a client can't
/// forge the key of another client by its hash.
const HASHED: &[u8] = b"sha256:";

/// The key of a log: any bytes that identify a user, an address or another subject of a limit.
///
/// Many types convert into a key:
///
/// | from | the key's bytes |
/// |---|---|
/// | text and bytes | unchanged, or their hash, see below |
/// | integers of 32 and 64 bits | the decimal digits |
/// | an IPv4 address | the address, such as `203.0.113.7` |
/// | an IPv6 address | its /64, such as `2001:db8:0:1::/64`; an IPv4-mapped one as the IPv4 address |
/// | a socket address | those of its IP address, without the port |
/// | a UUID | its text in lower case with hyphens |
///
/// [`key::peer_ip`](super::peer_ip) and [`key::client_ip`](super::client_ip) make the same key of an address, so
/// `bans.lift(address)` and `limiter.peek(address)` find it. If the extractor counts by longer or shorter
/// networks, [`IpExtractor::key_of`](super::IpExtractor::key_of) makes its key. [`Key::new`] takes any other bytes.
///
/// A key of more than 128 bytes, or one that begins with `sha256:`, is replaced by its SHA-256. Any other stands in Redis as
/// it is: hash a secret with [`Key::hashed`]. Keys often identify people, so neither
/// [`Debug`](fmt::Debug) nor any message of this crate contains their bytes. [`Key::as_bytes`] returns
/// them.
///
/// ```
/// use tower_sliding_window::Key;
///
/// let key = Key::from("receiver-17");
/// assert_eq!(key.as_bytes(), b"receiver-17");
/// assert_eq!(format!("{key:?}"), "Key(11 bytes)");
/// assert_eq!(Key::from(vec![b'x'; 1_000_000]).as_bytes().len(), 39);
///
/// let address: std::net::IpAddr = "2001:db8:0:1::7".parse().unwrap();
/// assert_eq!(Key::from(address), Key::from("2001:db8:0:1::/64"));
/// assert_eq!(Key::from(17_u64), Key::from("17"));
/// ```
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; INLINE]>);

impl Clone for Key {
    fn clone(&self) -> Self {
        // `SmallVec::clone` copies one byte after the other.
        Self(SmallVec::from_slice(&self.0))
    }
}

impl Key {
    /// Creates a key from bytes. More than 128 bytes are hashed, and so are bytes that begin with `sha256:`.
    /// [`Key::from_stored`] takes the bytes of a key.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        if bytes.len() <= LONGEST_KEY && !bytes.starts_with(HASHED) {
            return Self(SmallVec::from_slice(bytes));
        }
        Self::hashed(bytes)
    }

    /// Creates a key from the SHA-256 of bytes, whatever their number.
    ///
    /// A key of up to 128 bytes stands in Redis as it is. Hash a secret, such as an API key, so that whoever reads
    /// Redis does not get it. [`key::hashed`](super::hashed) does so for an extractor.
    ///
    /// ```
    /// use tower_sliding_window::Key;
    ///
    /// let key = Key::hashed("sk_live_4242");
    /// assert!(key.as_bytes().starts_with(b"sha256:") && key.as_bytes().len() == 39);
    /// assert_eq!(Key::hashed([b'x'; 1_000]), Key::from([b'x'; 1_000]));
    /// ```
    pub fn hashed(bytes: impl AsRef<[u8]>) -> Self {
        let mut hashed = SmallVec::from_slice(HASHED);
        hashed.extend_from_slice(&Sha256::digest(bytes));
        Self(hashed)
    }

    /// Returns the key as its hash. A key with this prefix is one already.
    pub(super) fn into_hashed(self) -> Self {
        if self.0.starts_with(HASHED) { self } else { Self::hashed(self.0) }
    }

    /// Creates the key whose [`Key::as_bytes`] these are, such as one of [`Bans::list`](crate::Bans::list) that an admin
    /// page sends back. More than 128 bytes are those of no key, and are hashed.
    ///
    /// Never for bytes of a client: it could name the hash of another client's key.
    ///
    /// ```
    /// use tower_sliding_window::Key;
    ///
    /// let key = Key::hashed("sk_live_4242");
    /// assert_eq!(Key::from_stored(key.as_bytes()), key);
    /// assert_ne!(Key::new(key.as_bytes()), key);
    /// ```
    pub fn from_stored(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        if bytes.len() > LONGEST_KEY {
            Self::hashed(bytes)
        } else {
            Self(SmallVec::from_slice(bytes))
        }
    }

    /// Creates a key from a short text. One that a key holds inline needs no allocation.
    pub(super) fn of_text(text: fmt::Arguments<'_>) -> Self {
        let mut inline = SmallVec::<[u8; INLINE]>::new();
        // Neither the formatted types nor the buffer return an error.
        let _ = inline.write_fmt(text);
        Self::new(inline)
    }

    /// Joins two keys into one. No other two keys join into the same.
    pub fn join(&self, other: &Key) -> Self {
        let mut joined = Vec::with_capacity(self.0.len() + other.0.len() + 4);
        joined.extend_from_slice(self.0.len().to_string().as_bytes());
        joined.push(b':');
        joined.extend_from_slice(&self.0);
        joined.extend_from_slice(&other.0);
        Self::new(joined)
    }

    /// Returns a hash that fits into a UUID, by which a log knows a value.
    pub(crate) fn entry_id(&self) -> Uuid {
        let hash = Sha256::digest(&self.0);
        Uuid::from_slice(&hash[..16]).unwrap_or_default()
    }

    /// Returns the key's bytes, or the prefix `sha256:` and the hash if there were too many.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

// There is no generic implementation for `AsRef<[u8]>`: it would include `Uuid`, whose key is its text.
macro_rules! key_from {
    ($($type:ty, |$value:ident| $key:expr;)*) => {$(
        impl From<$type> for Key {
            fn from($value: $type) -> Self {
                $key
            }
        }
    )*};
}

// The references are for `key::extension`, which has no value to give away.
key_from! {
    &str, |text| Self::new(text);
    String, |text| Self::new(text);
    &String, |text| Self::new(text);
    &Arc<str>, |text| Self::new(&**text);
    &[u8], |bytes| Self::new(bytes);
    Vec<u8>, |bytes| Self::new(bytes);
    Bytes, |bytes| Self::new(bytes);
    // Without 8-bit integers: `Key::from(b'7')` would be `55`.
    u32, |number| digits(number);
    &u32, |number| digits(*number);
    u64, |number| digits(number);
    &u64, |number| digits(*number);
    i32, |number| digits(number);
    &i32, |number| digits(*number);
    i64, |number| digits(number);
    &i64, |number| digits(*number);
    IpAddr, |ip| Networks::DEFAULT.key(ip);
    &IpAddr, |ip| Self::from(*ip);
    // Without the port.
    SocketAddr, |address| Self::from(address.ip());
    Uuid, |uuid| Self::of_text(format_args!("{}", uuid.hyphenated()));
    &Uuid, |uuid| Self::from(*uuid);
    &Key, |key| key.clone();
}

impl<const N: usize> From<[u8; N]> for Key {
    fn from(bytes: [u8; N]) -> Self {
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
    fn long_key_is_hashed_and_unforgeable() {
        let long = Key::from("x".repeat(129));
        assert_eq!(long.as_bytes().len(), HASHED.len() + 32);
        assert_ne!(long, Key::from("y".repeat(129)));
        assert_ne!(Key::from(long.as_bytes()), long, "the hash as a key is another key");
        for key in [&long, &Key::hashed("x"), &Key::from(""), &Key::from("x".repeat(128))] {
            assert_eq!(Key::from_stored(key.as_bytes()), *key);
        }
        assert_eq!(Key::from_stored("x".repeat(129)), long, "no key is longer");
        assert_eq!(Key::from("x".repeat(128)).as_bytes().len(), 128);
        assert_eq!(Key::hashed("x".repeat(129)), long);
        assert_eq!(long.clone().into_hashed(), long);
        assert_eq!(Key::from("x").into_hashed(), Key::hashed("x"));
        assert_ne!(Key::hashed("x"), Key::hashed("y"));
    }

    #[test]
    fn numbers_addresses_and_uuids_are_their_text() {
        assert_eq!(Key::from(0_u64).as_bytes(), b"0");
        assert_eq!(Key::from(u64::MAX).as_bytes(), b"18446744073709551615");
        assert_eq!(Key::from(&-7_i64).as_bytes(), b"-7");
        assert_eq!(Key::from(7), Key::from(7_u32));
        let address: SocketAddr = "[2001:db8:0:1::7]:443".parse().unwrap();
        assert_eq!(Key::from(address).as_bytes(), b"2001:db8:0:1::/64");
        let uuid = Uuid::from_u128(0xA1A2_A3A4_B1B2_C1C2_D1D2_D3D4_D5D6_D7D8);
        assert_eq!(Key::from(uuid).as_bytes(), b"a1a2a3a4-b1b2-c1c2-d1d2-d3d4d5d6d7d8");
        assert_eq!(Key::from(&uuid), Key::from(uuid));
    }
}
