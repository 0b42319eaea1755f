use http::header::COOKIE;
use http::request::Parts;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a cookie's value, byte for byte.
///
/// A cookie that occurs more than once is [`KeyError::Invalid`]. The syntax is that of
/// [RFC 6265, section 4.2.1](https://www.rfc-editor.org/rfc/rfc6265#section-4.2.1).
///
/// ```
/// use tower_sliding_window::key;
///
/// let session = key::cookie("session");
/// ```
#[must_use]
pub fn cookie(name: impl Into<String>) -> impl KeyExtractor + Clone {
    let name = name.into();
    move |parts: &Parts| {
        let mut values = parts
            .headers
            .get_all(COOKIE)
            .iter()
            .flat_map(|header| header.as_bytes().split(|byte| *byte == b';'))
            .filter_map(|pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Invalid);
        }
        non_empty(value)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{Key, parts_of};

    #[test]
    fn finds_the_one_cookie_of_that_name() {
        let key = |value: &str| {
            cookie("sid").extract(&parts_of(Request::builder().header(COOKIE, value)))
        };
        assert_eq!(key("a=1; sid=alice; b=2"), Ok(Key::from("alice")));
        assert_eq!(key("xsid=eve; sid=alice"), Ok(Key::from("alice")));
        assert_eq!(key("sid=alice; sid=eve"), Err(KeyError::Invalid));
        assert_eq!(key("sid="), Err(KeyError::Missing));
        assert_eq!(key("sidx=eve"), Err(KeyError::Missing));
    }
}
