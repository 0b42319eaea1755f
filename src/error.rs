//! [`StoreError`]: why a store gave no answer.

use std::time::Duration;

use crate::telemetry;

/// Why a store could not decide.
///
/// No message holds a key. What a request gets then is for the failure policy to say.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store can't be reached.
    #[error("the store can't be reached: {message}")]
    Unreachable {
        /// What the connection says.
        message: String,
    },
    /// The store did not answer in time. It may have counted the request all the same.
    #[error("the store did not answer in time")]
    Timeout,
    /// The connection broke after the request was sent. It may have been counted all the same.
    #[error("the connection to the store broke: {message}")]
    Disconnected {
        /// What the connection says.
        message: String,
    },
    /// The store has failed lately, and is not asked until it answers again.
    #[error("the store has failed lately and is not asked until it answers again")]
    Unavailable,
    /// The store failed after a part of it may have counted the request: some of the logs, where
    /// they are on several servers, or an earlier sending of the same command.
    #[error("the store failed after it may have counted the request: {source}")]
    Uncertain {
        /// How it failed.
        source: Box<StoreError>,
    },
    /// The store can't do this.
    #[error("the store can't do this: {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The store answered with an error.
    #[error("the store answered with an error: {message}")]
    Refused {
        /// The error's code, such as `OOM` or `WRONGTYPE`.
        code: String,
        /// The error as the store words it.
        message: String,
    },
    /// The store answered something that is no answer to the question.
    #[error("the store's answer makes no sense: {message}")]
    Protocol {
        /// What was expected.
        message: String,
    },
    /// The in-process store holds as many live windows as it may, and this would be one more.
    #[error("the in-process store is full: {capacity} windows are live")]
    Full {
        /// The cap.
        capacity: usize,
    },
    /// What the in-process store keeps of senders or groups takes as many bytes as it may.
    #[error("the in-process store is full: its messages take {budget} bytes")]
    TooManyBytes {
        /// How many bytes they may take.
        budget: usize,
    },
    /// The request's cost is more than a store will count one by one.
    #[error("a request of cost {cost} is too heavy: a cost is at most {most}")]
    CostTooHigh {
        /// The request's cost.
        cost: u32,
        /// The highest cost there is.
        most: u32,
    },
    /// The request's cost is above the limit of one of its quotas, so it could never pass.
    #[error("a request of cost {cost} can never pass a limit of {limit}")]
    CostAboveLimit {
        /// The request's cost.
        cost: u32,
        /// The lowest limit it meets.
        limit: u32,
    },
}

impl StoreError {
    /// Returns how long a caller should wait before it tries again, or `None` if no wait helps.
    ///
    /// It is `None` for what stays wrong however often it is tried: [`StoreError::CostAboveLimit`],
    /// [`StoreError::CostTooHigh`] and [`StoreError::Unsupported`]. These are mistakes of the
    /// caller, not failures of the store, and the metrics count them apart.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::CostAboveLimit { .. } | Self::CostTooHigh { .. } | Self::Unsupported { .. } => {
                None
            }
            _ => Some(Duration::from_secs(1)),
        }
    }

    /// Returns the kind of error in one word, for a metric's label.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout => "timeout",
            Self::Disconnected { .. } => "disconnected",
            Self::Unavailable => "unavailable",
            Self::Uncertain { .. } => "uncertain",
            Self::Unsupported { .. } => "unsupported",
            Self::Refused { .. } => "refused",
            Self::Protocol { .. } => "protocol",
            Self::Full { .. } | Self::TooManyBytes { .. } => "full",
            Self::CostTooHigh { .. } => "cost_too_high",
            Self::CostAboveLimit { .. } => "cost_above_limit",
        }
    }

    /// Reports the error as what it is: a failure of the store, or a mistake of the caller.
    pub(crate) fn report(&self) {
        match self.retry_after() {
            Some(_) => telemetry::store_error(self.kind(), self),
            None => telemetry::impossible_request(self.kind(), self),
        }
    }

    /// Tells whether it is the request that can never pass, whatever the store.
    pub(crate) const fn is_impossible(&self) -> bool {
        matches!(self, Self::CostTooHigh { .. } | Self::CostAboveLimit { .. })
    }

    /// Tells whether the store may have counted the request although no answer came.
    #[must_use]
    pub const fn may_have_counted(&self) -> bool {
        matches!(self, Self::Timeout | Self::Disconnected { .. } | Self::Uncertain { .. })
    }

    /// Tells whether the request was given to a connection.
    #[cfg(feature = "redis")]
    pub(crate) const fn was_sent(&self) -> bool {
        !matches!(self, Self::Unavailable | Self::Unsupported { .. })
    }

    /// Tells whether it is one window that is wrong, and no other would be answered so.
    #[cfg(feature = "redis")]
    pub(crate) fn concerns_one_window(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "WRONGTYPE")
    }
}
