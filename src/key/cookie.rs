use http::header::COOKIE;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a cookie's value, decoded as axum-extra's `CookieJar` does.
///
/// Name and value are trimmed and percent-decoded. One pair of double quotes around the value is
/// removed, as many parsers do. These are [`KeyError::Invalid`]:
///
/// - a cookie that occurs more than once;
/// - a value that is not UTF-8 after decoding;
/// - a `Cookie` header with bytes other than visible ASCII, spaces and tabs, because parsers differ on
///   it.
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
        let mut found = None;
        for header in parts.headers.get_all(COOKIE) {
            let cookies = header.to_str().map_err(|_| KeyError::Invalid)?.split(';');
            for (other, value) in cookies.filter_map(|cookie| cookie.split_once('=')) {
                let is_other = name.is_empty() || !is_name(other.trim(), &name);
                if !is_other && found.replace(value.trim()).is_some() {
                    return Err(KeyError::Invalid);
                }
            }
        }
        let value = percent_decode_str(found.ok_or(KeyError::Missing)?);
        let value = value.decode_utf8().map_err(|_| KeyError::Invalid)?;
        non_empty(unquoted(&value).as_bytes())
    }
}

/// Returns whether an encoded cookie name decodes to `name`.
fn is_name(encoded: &str, name: &str) -> bool {
    encoded == name || encoded.contains('%') && percent_decode_str(encoded).eq(name.bytes())
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}
