use std::sync::Arc;

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// Returns the same key for every request, so that all requests share one log.
pub fn constant(key: impl Into<Key>) -> impl KeyExtractor + Clone {
    let key = key.into();
    move |_: &Parts| Ok(key.clone())
}

/// Joins the keys of two extractors into one, so that each combination has its own log.
///
/// ```
/// use tower_sliding_window::key;
///
/// let session = key::hashed(key::cookie("session")); // a secret
/// let user_and_session = key::pair(key::header("x-user-id"), session);
/// ```
///
/// [`Key::join`] makes the same key, as for [`Limiter::reset`](crate::Limiter::reset).
pub fn pair(first: impl KeyExtractor, second: impl KeyExtractor) -> impl KeyExtractor + Clone {
    let of = Arc::new((first, second));
    move |parts: &Parts| Ok(of.0.extract(parts)?.join(&of.1.extract(parts)?))
}

/// Takes the key from the first of two extractors if the request has it, else from the second.
///
/// Nest it for more than two extractors. The two return different keys even for the same bytes, so that
/// an anonymous client can't use up the log of a user. The second extractor is used only if the first
/// returns [`KeyError::Missing`] or [`KeyError::NotApplicable`]. A key that is [`KeyError::Invalid`] or
/// [`KeyError::NotProvided`] is an error.
///
/// ```
/// use tower_sliding_window::key;
///
/// let user_or_ip = key::first_of(key::header("x-user-id"), key::peer_ip());
/// ```
///
/// The key of the first extractor is joined to `first`, and that of the second to `else`. So
/// [`Limiter::reset`](crate::Limiter::reset) and [`Bans::lift`](crate::Bans::lift) take
/// `Key::from("first").join(&Key::from("alice"))`.
pub fn first_of(first: impl KeyExtractor, second: impl KeyExtractor) -> impl KeyExtractor + Clone {
    let of = Arc::new((first, second));
    move |parts: &Parts| match of.0.extract(parts) {
        Err(KeyError::Missing | KeyError::NotApplicable) => {
            Ok(Key::from("else").join(&of.1.extract(parts)?))
        }
        found => found.map(|key| Key::from("first").join(&key)),
    }
}

/// Applies the rule only to requests with the extractor's key. The rule ignores other requests.
///
/// Only a key that the client did not send is optional: [`KeyError::Invalid`] and
/// [`KeyError::NotProvided`] stay errors. The metric `sliding_window_missing_keys_total` counts the
/// requests that the rule does not apply to, with the reason `not_applicable`. If it counts all
/// requests, check the name in the extractor.
///
/// Around [`extension`](super::extension), the rule limits nothing if the layer that inserts the value runs after it, and
/// nothing warns of it.
///
/// ```
/// use tower_sliding_window::key;
///
/// let signed_in_users_only = key::optional(key::header("x-user-id"));
/// ```
pub fn optional(extractor: impl KeyExtractor) -> impl KeyExtractor + Clone {
    let extractor = Arc::new(extractor);
    move |parts: &Parts| match extractor.extract(parts) {
        Err(KeyError::Missing) => Err(KeyError::NotApplicable),
        found => found,
    }
}

/// Hashes the key of another extractor, such as an API key, so that the secret does not stand in Redis.
///
/// [`Key::hashed`] makes the same key for a [`Limiter`](crate::Limiter) or for [`Bans`](crate::Bans).
///
/// ```
/// use tower_sliding_window::key;
///
/// let api_key = key::hashed(key::header("x-api-key"));
/// ```
pub fn hashed(extractor: impl KeyExtractor) -> impl KeyExtractor + Clone {
    let extractor = Arc::new(extractor);
    move |parts: &Parts| extractor.extract(parts).map(Key::into_hashed)
}
