//! The extractors that take the [`Key`] from a request.
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
//! | [`hashed`] | the hash of another extractor's key, for secrets | that key is missing |
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
//! An extractor reads a request as common parsers do, so that one text of the application is one key.
//! Where parsers differ, the error is [`KeyError::Invalid`]. It knows no types: `7`, `07` and `%2B7` are several keys,
//! and one number for axum's `Path<u64>` and `Query`. A UUID has many spellings too. Parse what the application parses:
//!
//! ```
//! use http::request::Parts;
//! use tower_sliding_window::{Key, KeyError, KeyExtractor, key};
//!
//! /// The number that a parameter is, however it is written.
//! fn number(parameter: impl KeyExtractor) -> impl KeyExtractor {
//!     move |parts: &Parts| {
//!         let text = parameter.extract(parts)?;
//!         let number = str::from_utf8(text.as_bytes()).ok().and_then(|it| it.parse::<u64>().ok());
//!         number.map(Key::from).ok_or(KeyError::Invalid)
//!     }
//! }
//!
//! let user = number(key::query("user"));
//! # for (query, key) in [("07", Ok(Key::from("7"))), ("%2B7", Ok(Key::from("7"))), ("x", Err(KeyError::Invalid))] {
//! #     let request = http::Request::get(format!("/?user={query}")).body(()).unwrap();
//! #     assert_eq!(user.extract(&request.into_parts().0), key);
//! # }
//! ```

mod combine;
mod extension;
pub(crate) mod extractor;
mod header;
mod ip;
#[cfg(feature = "axum")]
mod path;
mod query;
mod untrusted;
pub(crate) mod value;

pub use combine::{constant, first_of, hashed, optional, pair};
pub use extension::extension;
pub(crate) use extractor::{KeyError, KeyExtractor};
pub use header::{bearer, cookie, header};
pub use ip::{
    IpExtractor, PrefixLengthError, TrustedProxies, TrustedProxiesError, client_ip, peer_ip,
};
#[cfg(feature = "axum")]
pub use path::path_param;
pub use query::query;
pub(crate) use value::Key;

/// Returns the key, or [`KeyError::Missing`] if there are no bytes.
fn non_empty(bytes: &[u8]) -> Result<Key, KeyError> {
    if bytes.is_empty() { Err(KeyError::Missing) } else { Ok(Key::new(bytes)) }
}
