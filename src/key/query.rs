use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a parameter of the query string, decoded as axum's `Query` does.
///
/// A parameter that occurs more than once is [`KeyError::Invalid`]. So is a value that is not UTF-8,
/// because the application would see the same replacement character for different values. The syntax is
/// that of [`application/x-www-form-urlencoded`](https://url.spec.whatwg.org/#urlencoded-parsing).
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
            // Lossy like the parsers: the application may find the parameter under this name.
            (String::from_utf8_lossy(&decoded(key)) == name).then_some(value)
        });
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Invalid);
        }
        let value = String::from_utf8(decoded(value)).map_err(|_| KeyError::Invalid)?;
        non_empty(value.as_bytes())
    }
}

fn decoded(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{Key, parts_of};

    #[test]
    fn finds_the_parameter_by_name() {
        let key = |uri: &str| query("user").extract(&parts_of(Request::builder().uri(uri)));
        assert_eq!(key("/?a=1&user=al%7Bice+x"), Ok(Key::from("al{ice x")));
        assert_eq!(key("/?us%65r=alice"), Ok(Key::from("alice")));
        assert_eq!(key("/?user=%ff"), Err(KeyError::Invalid), "not UTF-8");
        assert_eq!(key("/?%ff=x&user=alice"), Ok(Key::from("alice")), "another parameter's name");
        assert_eq!(key("/?user=a%3Db=c"), Ok(Key::from("a=b=c")));
        assert_eq!(key("/?user=alice&user=eve"), Err(KeyError::Invalid));
        assert_eq!(key("/?user="), Err(KeyError::Missing));
        assert_eq!(key("/"), Err(KeyError::Missing));
    }
}
