//! [`Key`], and the extractors that take it from a request.
//!
//! Any closure `|parts: &Parts| -> Result<Key, KeyError>` is a [`KeyExtractor`]. Write the type of its
//! argument, which the compiler does not infer. The ready-made ones:
//!
//! | extractor | takes | missing when |
//! |---|---|---|
//! | [`header`] | a request header | absent or empty |
//! | [`bearer`] | the key that a closure returns for the bearer token | no bearer token, or the closure returns `None` |
//! | [`cookie`] | a cookie | absent or empty |
//! | [`query`] | a parameter of the query string, decoded | absent or empty |
//! | [`extension`] | a value that an earlier layer put into the request | not put there |
//! | [`peer_ip`] | the address of the connection's peer | never |
//! | [`client_ip`] | the client's address behind trusted proxies | never |
//! | [`constant`] | the same key for all requests | never |
//! | [`pair`] | two keys as one | either is missing |
//! | [`first_of`] | the key of the first extractor that has one | all are missing |
//! | [`optional`] | the key of another extractor; without it the rule does not apply | never |
#![cfg_attr(
    feature = "axum",
    doc = "| [`path_param`] | a parameter of axum's route, decoded | empty, or the path leads to no route |"
)]
//!
//! If the client did not send the key, the error is [`KeyError::Missing`] and the response is a 401. If
//! the server should have provided the key, such as the address of the peer, the error is
//! [`KeyError::NotProvided`] and the response is a 500: the server is not set up correctly.
//!
//! An extractor reads a request as common parsers do, so that one user of the application is one key.
//! Where parsers differ, the error is [`KeyError::Invalid`].

mod combine;
mod convert;
mod extension;
mod header;
mod ip;
mod network;
#[cfg(feature = "axum")]
mod path;
mod query;
mod untrusted;

use std::fmt::{self, Write};

use http::request::Parts;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

pub use combine::{constant, first_of, optional, pair};
pub use extension::extension;
pub use header::{bearer, cookie, header};
pub use ip::{IpExtractor, TrustedProxies, TrustedProxiesError, client_ip, peer_ip};
pub use network::PrefixLengthError;
#[cfg(feature = "axum")]
pub use path::path_param;
pub use query::query;

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
/// | text, bytes, and references to them | unchanged |
/// | integers of 16 bits and more | the decimal digits |
/// | an IPv4 address | the address, such as `203.0.113.7` |
/// | an IPv6 address | its /64, such as `2001:db8:0:1::/64`; an IPv4-mapped one as the IPv4 address |
/// | a socket address | those of its IP address, without the port |
/// | a UUID | its text in lower case with hyphens |
///
/// [`key::peer_ip`](peer_ip) and [`key::client_ip`](client_ip) make the same key of an address, so
/// `bans.lift(address)` and `limiter.peek(address)` find it. If the extractor counts by longer or shorter
/// networks, [`IpExtractor::key_of`] makes its key. [`Key::new`] takes any other bytes.
///
/// A key of more than 128 bytes is replaced by its SHA-256. Keys often identify people, so neither
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
        Self::from_stored(&self.0)
    }
}

impl Key {
    /// Creates a key from bytes. More than 128 bytes are hashed.
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        if bytes.len() <= LONGEST_KEY && !bytes.starts_with(HASHED) {
            return Self(SmallVec::from_slice(bytes));
        }
        let mut hashed = SmallVec::from_slice(HASHED);
        hashed.extend_from_slice(&Sha256::digest(bytes));
        Self(hashed)
    }

    /// Creates a key from the [bytes](Key::as_bytes) of an earlier one, without hashing them again.
    pub(crate) fn from_stored(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// Creates a key from a short text. One that a key holds inline needs no allocation.
    fn of_text(text: fmt::Arguments<'_>) -> Self {
        struct Inline(SmallVec<[u8; INLINE]>);
        impl Write for Inline {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.extend_from_slice(text.as_bytes());
                Ok(())
            }
        }
        let mut inline = Inline(SmallVec::new());
        // Neither the formatted types nor the buffer return an error.
        let _ = inline.write_fmt(text);
        Self::new(inline.0)
    }

    /// Joins two keys into one. No other two keys join into the same.
    #[must_use]
    pub fn join(&self, other: &Key) -> Self {
        let mut joined = Vec::with_capacity(self.0.len() + other.0.len() + 4);
        joined.extend_from_slice(self.0.len().to_string().as_bytes());
        joined.push(b':');
        joined.extend_from_slice(&self.0);
        joined.extend_from_slice(&other.0);
        Self::new(joined)
    }

    /// Returns the key's bytes, or the prefix `sha256:` and the hash if there were too many.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// Takes the key from the head of a request.
///
/// ```
/// use http::request::Parts;
/// use tower_sliding_window::{Key, KeyError, KeyExtractor};
///
/// fn tenant(parts: &Parts) -> Result<Key, KeyError> {
///     let host = parts.uri.host().ok_or(KeyError::Missing)?;
///     Ok(Key::from(host))
/// }
///
/// fn takes_an_extractor(_: impl KeyExtractor) {}
/// takes_an_extractor(tenant);
/// takes_an_extractor(|parts: &Parts| Ok(Key::from(parts.method.as_str())));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't take a key from a request",
    label = "not a key extractor",
    note = "use one of `tower_sliding_window::key`, such as `key::header(\"x-user-id\")`, or a \
            closure `|parts: &http::request::Parts| -> Result<Key, KeyError>`; the closure must \
            name the type `&Parts`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of the request.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] if the request has no key.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;

    /// Returns whether a part of the server puts the key into the request, as for [`extension`]. Defaults
    /// to `false`.
    ///
    /// Then a rule that has not found its key in 100 requests is reported also within [`optional`].
    fn is_provided_by_server(&self) -> bool {
        false
    }
}

impl<F> KeyExtractor for F
where
    F: Fn(&Parts) -> Result<Key, KeyError> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self(parts)
    }
}

/// The reason why a request has no key.
///
/// The metric `sliding_window_missing_keys_total` counts these errors by the rule's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The client did not send the key. The response is a 401, unless
    /// [`on_missing_key`](crate::SlidingWindowLayer::on_missing_key) changes that.
    #[error("the request has no key")]
    Missing,
    /// The server did not provide the key, such as the address of the peer. The response is a 500.
    ///
    /// The server is not set up correctly, and no client can correct that. Neither [`optional`],
    /// [`first_of`] nor [`MissingKey::SkipRule`](crate::MissingKey::SkipRule) hides the error, because
    /// the rule would then limit nothing. The first time, a warning names the rule's policy and the fix,
    /// with the feature `tracing`.
    #[error("the server did not provide the key: {fix}")]
    NotProvided {
        /// What to change in the server. It is not sent to the client.
        fix: &'static str,
    },
    /// The key in the request is ambiguous or malformed, for example because it occurs twice.
    #[error("the key in the request is ambiguous or malformed")]
    Invalid,
    /// The rule does not apply to this request.
    #[error("the rule does not apply to the request")]
    NotApplicable,
}

impl KeyError {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::NotApplicable => "not_applicable",
            Self::NotProvided { .. } => "not_provided",
        }
    }
}

/// Returns the key, or [`KeyError::Missing`] if there are no bytes.
fn non_empty(bytes: &[u8]) -> Result<Key, KeyError> {
    if bytes.is_empty() { Err(KeyError::Missing) } else { Ok(Key::new(bytes)) }
}

#[cfg(test)]
pub(crate) fn parts_of(request: http::request::Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
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
        assert_eq!(Key::from("x".repeat(128)).as_bytes().len(), 128);
    }
}
