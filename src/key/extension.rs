use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// Takes the key from a value that an earlier layer put into the request's extensions.
///
/// Use it behind an authentication layer. A request without the value is [`KeyError::Missing`], because
/// an authentication layer may insert nothing for an anonymous client. The extractor can't distinguish
/// this from a layer that has not run yet.
///
/// So the order of the layers matters. In axum the layer that is added last runs first: add the layer
/// that inserts the value after this one. If a rule finds no key in its first 100 requests, there is one
/// warning, with the feature `tracing`, but none within [`optional`](super::optional). With
/// `RUST_LOG=tower_sliding_window=debug` each of them is logged.
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
/// # use tower_sliding_window::{KeyError, KeyExtractor};
/// # let (mut parts, ()) = http::Request::new(()).into_parts();
/// # assert_eq!(user.extract(&parts), Err(KeyError::Missing));
/// # parts.extensions.insert(UserId(7));
/// # assert_eq!(user.extract(&parts), Ok(Key::new(7_u64.to_be_bytes())));
/// ```
///
/// A type of another crate, or an `Arc`, can't have this conversion. A closure is an extractor too:
///
/// ```
/// use std::sync::Arc;
///
/// use http::request::Parts;
/// use tower_sliding_window::{Key, KeyError, KeyExtractor};
///
/// struct User {
///     id: u64,
/// }
///
/// let user = |parts: &Parts| {
///     let user = parts.extensions.get::<Arc<User>>().ok_or(KeyError::Missing)?;
///     Ok(Key::from(user.id))
/// };
/// # fn is_extractor(_: impl KeyExtractor) {}
/// # is_extractor(user);
/// ```
pub fn extension<T>() -> impl KeyExtractor + Clone
where
    T: Send + Sync + 'static,
    for<'a> &'a T: Into<Key>,
{
    |parts: &Parts| parts.extensions.get::<T>().map(Into::into).ok_or(KeyError::Missing)
}
