//! [`KeyExtractor`], and the reasons why a request has no key.

use std::sync::Arc;

use http::request::Parts;

use super::Key;

/// Takes the key from the head of a request.
///
/// ```
/// use http::request::Parts;
/// use tower_sliding_window::{Key, KeyError, KeyExtractor};
///
/// /// The tenant of `/acme/orders`.
/// fn tenant(parts: &Parts) -> Result<Key, KeyError> {
///     match parts.uri.path().split('/').nth(1) {
///         None | Some("") => Err(KeyError::Missing),
///         // An application that decodes it sees one tenant in several spellings.
///         Some(it) if it.contains('%') => Err(KeyError::Invalid),
///         Some(it) => Ok(Key::from(it)),
///     }
/// }
///
/// fn takes_an_extractor(_: impl KeyExtractor) {}
/// takes_an_extractor(tenant);
/// takes_an_extractor(|parts: &Parts| Ok(Key::from(parts.method.as_str())));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't take a key from a request",
    label = "not a key extractor",
    note = "use one of `tower_sliding_window::key`, such as `key::header(\"x-user-id\")`, or a \
            closure `|parts: &http::request::Parts| -> Result<Key, KeyError>`; the closure must \
            name the type `&Parts`"
)]
#[must_use]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of the request.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] if the request has no key.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;
}

impl<F> KeyExtractor for F
where
    F: Fn(&Parts) -> Result<Key, KeyError> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self(parts)
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Arc<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        (**self).extract(parts)
    }
}

/// The reason why a request has no key.
///
/// The metric `sliding_window_missing_keys_total` counts these errors by the rule's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The client did not send the key. The response is a 401, unless
    /// [`on_missing_key`](crate::SlidingWindowLayer::on_missing_key) changes that.
    #[error("the request has no key")]
    Missing,
    /// The server did not provide the key, such as the address of the peer. The response is a 500.
    ///
    /// The server is not set up correctly, and no client can correct that. Neither [`optional`](super::optional),
    /// [`first_of`](super::first_of) nor [`MissingKey::SkipRule`](crate::MissingKey::SkipRule) hides the error, because
    /// the rule would then limit nothing. The first time, a warning names the rule's policy and the fix,
    /// with the feature `tracing`.
    #[error("the server did not provide the key: {fix}")]
    NotProvided {
        /// What to change in the server. It is the `detail` of the 500, so it names no secret.
        fix: &'static str,
    },
    /// The key in the request is ambiguous or malformed, for example because it occurs twice.
    #[error("the key in the request is ambiguous or malformed")]
    Invalid,
    /// The rule does not apply to this request.
    #[error("the rule does not apply to the request")]
    NotApplicable,
}

impl KeyError {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::NotApplicable => "not_applicable",
            Self::NotProvided { .. } => "not_provided",
        }
    }
}
