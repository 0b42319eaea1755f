use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, GetAll, HeaderName, HeaderValue};
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{Key, KeyError, KeyExtractor, non_empty};

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
#[track_caller]
pub fn header(name: impl AsRef<str>) -> impl KeyExtractor + Clone {
    let name = name.as_ref();
    let name: HeaderName = match name.parse() {
        Ok(name) => name,
        Err(_) => panic!("`name` is not a header name: {name:?}"),
    };
    move |parts: &Parts| non_empty(only_value(parts.headers.get_all(&name))?.as_bytes())
}

/// Takes the key that `subject` returns for the bearer token in `Authorization`, such as the `sub` of a JWT.
///
/// `subject` verifies the token and returns the key of its subject, or `None` if the token is not
/// valid. `None` is [`KeyError::Missing`]. Two `Authorization` headers are [`KeyError::Invalid`].
///
/// If it returns the token itself, the key is its hash, [`Key::hashed`]: a secret does not stand in Redis.
///
/// The syntax is that of [RFC 6750, section 2.1]. The header is parsed as in the crate `headers`, which
/// axum-extra's `TypedHeader` uses: the token follows the scheme `Bearer`, in upper or lower case, and
/// any number of spaces.
///
/// [RFC 6750, section 2.1]: https://www.rfc-editor.org/rfc/rfc6750#section-2.1
///
/// ```
/// use tower_sliding_window::key;
///
/// # fn verify(token: &str) -> Option<String> { Some(token.to_owned()) }
/// let user = key::bearer(|token| verify(token).map(Into::into));
/// ```
pub fn bearer<F>(subject: F) -> impl KeyExtractor + Clone
where
    F: Fn(&str) -> Option<Key> + Send + Sync + 'static,
{
    let subject = Arc::new(subject);
    move |parts: &Parts| {
        let value = only_value(parts.headers.get_all(AUTHORIZATION))?;
        let value = value.to_str().map_err(|_| KeyError::Invalid)?;
        let (scheme, token) = value.split_once(' ').ok_or(KeyError::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(KeyError::Missing);
        }
        let token = token.trim_start();
        let key = subject(token).ok_or(KeyError::Missing)?;
        Ok(if key.as_bytes() == token.as_bytes() { key.into_hashed() } else { key })
    }
}

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
/// let session = key::hashed(key::cookie("session")); // a secret
/// ```
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
        let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        non_empty(unquoted.unwrap_or(&value).as_bytes())
    }
}

fn is_name(encoded: &str, name: &str) -> bool {
    encoded == name || encoded.contains('%') && percent_decode_str(encoded).eq(name.bytes())
}

/// Returns the value of a header that must not occur twice.
fn only_value(values: GetAll<'_, HeaderValue>) -> Result<&HeaderValue, KeyError> {
    let mut values = values.iter();
    let value = values.next().ok_or(KeyError::Missing)?;
    if values.next().is_some() { Err(KeyError::Invalid) } else { Ok(value) }
}
