use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// Takes the key from a value that an earlier layer put into the request's extensions.
///
/// The natural choice behind an authentication layer.
///
/// ```
/// use tower_sliding_window::{Key, key};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl From<&UserId> for Key {
///     fn from(user: &UserId) -> Key {
///         Key::new(user.0.to_be_bytes())
///     }
/// }
///
/// let user = key::extension::<UserId>();
/// ```
#[must_use]
pub fn extension<T>() -> impl KeyExtractor + Clone
where
    T: Send + Sync + 'static,
    for<'a> &'a T: Into<Key>,
{
    |parts: &Parts| parts.extensions.get::<T>().map(Into::into).ok_or(KeyError::Missing)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::parts_of;

    #[test]
    fn finds_the_value_by_its_type() {
        let request = Request::builder().extension(String::from("alice"));
        assert_eq!(extension::<String>().extract(&parts_of(request)), Ok(Key::from("alice")));
        let request = Request::builder().extension(7_u64);
        assert_eq!(extension::<String>().extract(&parts_of(request)), Err(KeyError::Missing));
    }
}
