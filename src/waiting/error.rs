//! [`WaitError`]: why a wait ended without an admission.

use std::time::Duration;

use crate::error::StoreError;
use crate::window::Denied;

/// Why a wait for an admission ended without one.
///
/// No log has recorded the request, unless [`StoreError::may_have_counted`] says that one may have. No
/// message holds a key.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The request was denied: its key is banned, or the wait would be longer than it may be.
    #[error("denied for the next {:?}", .0.retry_after())]
    Denied(Denied),
    /// As many callers wait as may wait for the limiter, see
    /// [`Limiter::max_waiters`](crate::Limiter::max_waiters).
    #[error("too many callers wait: the limiter allows {most}")]
    TooManyWaiters {
        /// How many may wait.
        most: usize,
    },
    /// The store could not decide, or the request can never pass.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WaitError {
    /// Returns how long the caller should wait before it tries again, or `None` if no wait helps.
    ///
    /// It is the time of the denial or of the error of the store, and a second after
    /// [`WaitError::TooManyWaiters`]. Check [`Denied::has_known_wait`] for policies that count requests in flight.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(denied) => Some(denied.retry_after()),
            Self::TooManyWaiters { .. } => Some(Duration::from_secs(1)),
            Self::Store(error) => error.retry_after(),
        }
    }

    /// Returns the denial, or `None` if there was none.
    pub fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }
}
