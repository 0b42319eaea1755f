use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a parameter of the query string, percent-decoded.
///
/// A parameter that occurs more than once is [`KeyError::Invalid`]. The syntax is that of
/// [`application/x-www-form-urlencoded`](https://url.spec.whatwg.org/#urlencoded-parsing).
///
/// ```
/// use tower_sliding_window::key;
///
/// let user = key::query("user");
/// ```
#[must_use]
pub fn query(name: impl Into<String>) -> impl KeyExtractor + Clone {
    let name = name.into();
    move |parts: &Parts| {
        let query = parts.uri.query().ok_or(KeyError::Missing)?;
        let mut values = query.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key) == name.as_bytes()).then_some(value)
        });
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Invalid);
        }
        non_empty(&decoded(value))
    }
}

/// Decodes to bytes, not to text: two names that are not UTF-8 are still two names.
fn decoded(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{Key, parts_of};

    #[test]
    fn decodes_the_one_parameter_of_that_name() {
        let key = |uri: &str| query("user").extract(&parts_of(Request::builder().uri(uri)));
        assert_eq!(key("/?a=1&user=al%7Bice+x"), Ok(Key::from("al{ice x")));
        assert_eq!(key("/?us%65r=alice"), Ok(Key::from("alice")));
        assert_ne!(key("/?user=%ff"), key("/?user=%fe"), "bytes that are not UTF-8");
        assert_eq!(key("/?user=a%3Db=c"), Ok(Key::from("a=b=c")));
        assert_eq!(key("/?user=alice&user=eve"), Err(KeyError::Invalid));
        assert_eq!(key("/?user="), Err(KeyError::Missing));
        assert_eq!(key("/"), Err(KeyError::Missing));
    }
}
