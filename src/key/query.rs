use std::borrow::Cow;

use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a parameter of the query string, decoded as axum's `Query` does.
///
/// A parameter that occurs more than once is [`KeyError::Invalid`]. So is a value that is not UTF-8,
/// because the application would see the same replacement character for different values. The syntax is
/// that of [`application/x-www-form-urlencoded`](https://url.spec.whatwg.org/#urlencoded-parsing).
///
/// Each spelling of a number or a UUID is a key of its own: parse it as [`key`](super) shows.
///
/// ```
/// use tower_sliding_window::key;
///
/// let user = key::query("user");
/// ```
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
        let value = decoded(value);
        // The application may see one text for several values that are not UTF-8.
        str::from_utf8(&value).map_err(|_| KeyError::Invalid)?;
        non_empty(&value)
    }
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        return percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>().into();
    }
    percent_decode_str(text).into()
}
