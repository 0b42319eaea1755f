use http::header::HeaderName;
use http::request::Parts;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a request header, byte for byte.
///
/// A header that occurs more than once is [`KeyError::Invalid`], because the client could choose which
/// of the two counts. A client can send any header, so use this extractor behind a proxy or layer that
/// authenticates the user and sets the header.
///
/// # Panics
///
/// If `name` is not a header name.
///
/// ```
/// use tower_sliding_window::key;
///
/// let user = key::header("x-user-id");
/// ```
#[must_use]
#[track_caller]
pub fn header(name: impl AsRef<str>) -> impl KeyExtractor + Clone {
    let name = name.as_ref();
    let name: HeaderName = match name.parse() {
        Ok(name) => name,
        Err(_) => panic!("`name` is not a header name: {name:?}"),
    };
    move |parts: &Parts| {
        let mut values = parts.headers.get_all(&name).iter();
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Invalid);
        }
        non_empty(value.as_bytes())
    }
}
