use http::header::AUTHORIZATION;
use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// Takes the key that `subject` returns for the bearer token in `Authorization`.
///
/// `subject` verifies the token and returns the key of its subject, or `None` if the token is not
/// valid. `None` is [`KeyError::Missing`]. Two `Authorization` headers are [`KeyError::Invalid`].
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
#[must_use]
pub fn bearer<F>(subject: F) -> impl KeyExtractor
where
    F: Fn(&str) -> Option<Key> + Send + Sync + 'static,
{
    move |parts: &Parts| {
        let mut values = parts.headers.get_all(AUTHORIZATION).iter();
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Invalid);
        }
        let value = value.to_str().map_err(|_| KeyError::Invalid)?;
        let (scheme, token) = value.split_once(' ').ok_or(KeyError::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(KeyError::Missing);
        }
        subject(token.trim_start()).ok_or(KeyError::Missing)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::parts_of;

    #[test]
    fn closure_verifies_the_token() {
        let subject = |token: &str| token.strip_prefix("good-").map(Key::from);
        let key = |value: &str| {
            bearer(subject).extract(&parts_of(Request::builder().header(AUTHORIZATION, value)))
        };
        assert_eq!(key("Bearer good-alice"), Ok(Key::from("alice")));
        assert_eq!(key("bearer  good-alice"), Ok(Key::from("alice")));
        assert_eq!(key("Bearer forged"), Err(KeyError::Missing));
        assert_eq!(key("Basic good-alice"), Err(KeyError::Missing));
        assert_eq!(key("Bearer"), Err(KeyError::Missing));
    }
}
