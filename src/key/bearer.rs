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
