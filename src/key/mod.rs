//! [`Key`], whose window a request counts in, and the extractors that take it from a request.
//!
//! Any closure `Fn(&Parts) -> Result<Key, KeyError>` is a [`KeyExtractor`]. The ready-made ones:
//!
//! | extractor | takes | missing when |
//! |---|---|---|
//! | [`header`] | a request header | absent or empty |
//! | [`bearer`] | what a closure makes of the bearer token | no bearer token, or the closure yields nothing |
//! | [`cookie`] | a cookie | absent or empty |
//! | [`query`] | a parameter of the query string, decoded | absent or empty |
//! | [`extension`] | a value an earlier layer put into the request | not put there |
//! | [`peer_ip`] | the address at the other end of the connection | the server does not tell |
//! | [`client_ip`] | the client's address behind proxies you name | the server does not tell |
//! | [`constant`] | one window for all requests | never |
//! | [`pair`] | two keys as one | either is missing |
//! | [`first_of`] | the first of several that yields | all are missing |
//! | [`optional`] | another extractor; without its key the rule does not apply | never |
#![cfg_attr(
    feature = "axum",
    doc = "| [`path_param`] | a parameter of axum's route, decoded | the route has none of that name |"
)]

mod bearer;
mod combine;
mod cookie;
mod extension;
mod header;
mod ip;
#[cfg(feature = "axum")]
mod path;
mod query;

use std::fmt;

use http::request::Parts;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

pub use bearer::bearer;
pub use combine::{constant, first_of, optional, pair};
pub use cookie::cookie;
pub use extension::extension;
pub use header::header;
pub use ip::{TrustedProxies, TrustedProxiesError, client_ip, peer_ip};
#[cfg(feature = "axum")]
pub use path::path_param;
pub use query::query;

/// The longest key that is kept as it is, in bytes.
const LONGEST_KEY: usize = 128;
/// Up to which length a key needs no allocation of its own: a UUID as text, an address, a hash.
const INLINE: usize = 40;
/// What the hash of a longer key begins with. A shorter key that begins so is hashed as well, so
/// that nobody can name another's window by its hash.
const HASHED: &[u8] = b"sha256:";

/// Whose window a request counts in: any bytes.
///
/// Up to 128 bytes are kept as they are; a longer key is replaced by its SHA-256. Keys often
/// name people, so neither [`Debug`](fmt::Debug) nor any message of this crate shows their
/// bytes; [`Key::as_bytes`] does.
///
/// ```
/// use tower_sliding_window::Key;
///
/// let key = Key::from("receiver-17");
/// assert_eq!(key.as_bytes(), b"receiver-17");
/// assert_eq!(format!("{key:?}"), "Key(11 bytes)");
/// assert_eq!(Key::from(vec![b'x'; 1_000_000]).as_bytes().len(), 39);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; INLINE]>);

impl Key {
    /// Creates a key from bytes, hashing them if there are more than 128.
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

    /// Creates a key from bytes that stand for one already.
    pub(crate) fn kept(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// Joins two keys into one, so that no other two join into the same.
    #[must_use]
    pub fn join(&self, other: &Key) -> Self {
        let mut joined = Vec::with_capacity(self.0.len() + other.0.len() + 4);
        joined.extend_from_slice(self.0.len().to_string().as_bytes());
        joined.push(b':');
        joined.extend_from_slice(&self.0);
        joined.extend_from_slice(&other.0);
        Self::new(joined)
    }

    /// Returns the key's bytes, or what stands for them if they were too many.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<[u8]>> From<T> for Key {
    fn from(bytes: T) -> Self {
        Self::new(bytes)
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
            closure `|parts: &http::request::Parts| -> Result<Key, KeyError>`; a closure needs \
            the `&Parts` written out"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of the request.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] that says why there is none.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;
}

impl<F> KeyExtractor for F
where
    F: Fn(&Parts) -> Result<Key, KeyError> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self(parts)
    }
}

/// Why a request has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The request does not carry what the key is taken from.
    #[error("the request names no key")]
    Missing,
    /// The request carries it in a form that can't be told from another's, such as twice.
    #[error("the request names its key ambiguously or malformed")]
    Invalid,
    /// The rule is not meant for this request.
    #[error("the rule does not apply to the request")]
    NotApplicable,
}

/// Returns the key, or [`KeyError::Missing`] for no bytes at all.
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
    fn a_long_key_is_hashed_and_cannot_be_forged() {
        let long = Key::from("x".repeat(129));
        assert_eq!(long.as_bytes().len(), HASHED.len() + 32);
        assert_ne!(long, Key::from("y".repeat(129)));
        assert_ne!(Key::from(long.as_bytes()), long, "its hash given as a key is another key");
        assert_eq!(Key::from("x".repeat(128)).as_bytes().len(), 128);
    }

    #[test]
    fn joined_keys_are_unambiguous() {
        let join = |a: &str, b: &str| Key::from(a).join(&Key::from(b));
        assert_ne!(join("a", "bc"), join("ab", "c"));
        assert_ne!(join("", "abc"), join("abc", ""));
        assert_eq!(join("a", "b"), join("a", "b"));
    }
}
