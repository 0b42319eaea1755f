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

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;
    use crate::key::{Key, parts_of};

    #[test]
    fn takes_any_bytes() {
        let key = |value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            header("x-user-id").extract(&parts_of(Request::builder().header("x-user-id", value)))
        };
        assert_eq!(key(b"alice"), Ok(Key::from("alice")));
        assert_eq!(key(b"\xff\xfe{}"), Ok(Key::from(b"\xff\xfe{}")));
        assert_eq!(key(b""), Err(KeyError::Missing));
    }

    #[test]
    fn repeated_header_is_invalid() {
        let request = Request::builder().header("x-user-id", "a").header("x-user-id", "b");
        assert_eq!(header("x-user-id").extract(&parts_of(request)), Err(KeyError::Invalid));
        assert_eq!(
            header("x-user-id").extract(&parts_of(Request::builder())),
            Err(KeyError::Missing)
        );
    }
}
