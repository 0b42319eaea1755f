//! [`Change`] and [`ChangeError`]: what may be changed, and why nothing was.

use tower_sliding_window::StoreError;

use super::MOST_MEMBERS;
use crate::sum::GlobalTooLow;
use crate::thresholds::UnknownTarget;

/// What a change may be of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Of levels and of members that there are.
    OfMembers,
    /// Of new members too.
    Put,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Unknown(#[from] UnknownTarget),
    #[error("there are {MOST_MEMBERS} already")]
    TooMany,
    #[error(transparent)]
    GlobalTooLow(#[from] GlobalTooLow),
    #[error("the change can't be written to Redis: {0}")]
    Redis(#[from] StoreError),
    #[error("other servers were faster, again and again")]
    Contended,
}
