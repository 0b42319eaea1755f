//! [`StoreError`]: why a call of a store failed.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::telemetry;

/// Returns a value, or panics with its error at the caller's place.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, impl Display>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// The task of a call has ended early: with its runtime, or by a panic. It may have sent the request.
pub(crate) fn task_has_ended() -> StoreError {
    StoreError::Disconnected { message: "the task of the call has ended".to_owned() }
}

/// Why a call of a store failed.
///
/// Either the store failed, or the call is a mistake of the caller: [`NoBudget`](Self::NoBudget),
/// [`CostAboveLimit`](Self::CostAboveLimit), [`NoValue`](Self::NoValue), [`Unsupported`](Self::Unsupported),
/// [`UnknownPolicy`](Self::UnknownPolicy) and [`Configuration`](Self::Configuration). The
/// [`FailurePolicy`](crate::FailurePolicy) applies to failures of the store. A mistake is an error under each of them. No
/// message holds a key.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// What the application says about the servers is wrong, such as a URL.
    #[error("the servers of the store are not described correctly: {message}")]
    Configuration {
        /// What is wrong, and what to do.
        message: String,
    },
    /// The store can't be reached.
    #[error("the store can't be reached: {message}")]
    Unreachable {
        /// The message of the connection.
        message: String,
    },
    /// The store did not reply in time. It may have counted the request.
    #[error("the store did not reply in time")]
    Timeout,
    /// The connection broke after the request was sent. The store may have counted the request.
    #[error("the connection to the store broke: {message}")]
    Disconnected {
        /// The message of the connection.
        message: String,
    },
    /// There is no connection to the store, or nothing replied while the request waited for its turn. It was not sent.
    #[error("there is no connection to the store: no request is sent until it replies")]
    Unavailable,
    /// The store has more to do than it can. The request has waited for a second, or too many waited already, and it
    /// was not decided.
    ///
    /// This is no outage: the store decides, and a local decision would be one too many. So the
    /// request is refused unless its failure policy is `Open`.
    #[error("the store is overloaded: the request was not decided")]
    Overloaded,
    /// The store failed, and a part of it may have counted the request: some of the logs, if they
    /// are on several servers, or some of the commands of a pipeline.
    #[error("the store failed after it may have counted the request: {error}")]
    Uncertain {
        /// The failure.
        error: Box<StoreError>,
    },
    /// The store does not support this.
    #[error("the store can't do this: {what}")]
    Unsupported {
        /// What it does not support.
        what: &'static str,
    },
    /// The store replied with an error.
    #[error("the store replied with an error: {message}")]
    Refused {
        /// The error's code, such as `OOM` or `WRONGTYPE`.
        code: String,
        /// The message of the store.
        message: String,
    },
    /// The store sent a reply of an unexpected form.
    #[error("the store sent an unexpected reply: {message}")]
    Protocol {
        /// What was expected.
        message: String,
    },
    /// A store in process is full, and the request needs a new log or ban record. In an outage it also means that the
    /// local logs of a [`RedisStore`](crate::RedisStore) are full, or its journal of requests to write back.
    #[error(
        "this process is full: it keeps no more than {capacity} logs, or requests that Redis does not know yet"
    )]
    Full {
        /// The capacity.
        capacity: usize,
    },
    /// The request costs more than 1, and none of its policies is a budget.
    #[error(
        "a request of cost {cost} has no budget: make a policy with `Policy::budget`, because others count it as \
         one request"
    )]
    NoBudget {
        /// The request's cost.
        cost: u32,
    },
    /// The request's cost is above the limit of one of its quotas, so it can never pass.
    #[error("a request of cost {cost} can never pass a limit of {limit}")]
    CostAboveLimit {
        /// The request's cost.
        cost: u32,
        /// The lowest limit among its quotas.
        limit: u32,
    },
    /// The policy counts distinct values, and the request has none.
    #[error(
        "the policy {policy:?} counts distinct values, and the request has none: use \
         `SlidingWindowLayer::rule_distinct`, `Limiter::check_value` or `LogCost::value`"
    )]
    NoValue {
        /// The name of the policy.
        policy: String,
    },
    /// The request was not checked under a policy of this name.
    #[error("the request has no policy `{name}`: its policies are `{}`", .policies.join("`, `"))]
    UnknownPolicy {
        /// The name that was given.
        name: String,
        /// The names of the request's policies.
        policies: Vec<String>,
    },
}

impl StoreError {
    /// Returns how long the caller should wait before it tries again, or `None` if no wait helps.
    ///
    /// It is `None` for [`StoreError::CostAboveLimit`], [`StoreError::NoBudget`], [`StoreError::Unsupported`],
    /// [`StoreError::NoValue`], [`StoreError::UnknownPolicy`] and [`StoreError::Configuration`]. These are
    /// mistakes of the caller, not failures of the store. `sliding_window_impossible_requests_total` counts those of checks.
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.is_mistake() { None } else { Some(Duration::from_secs(1)) }
    }

    /// Returns the kind of error as the label of a metric.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Configuration { .. } => "configuration",
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout => "timeout",
            Self::Disconnected { .. } => "disconnected",
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::Uncertain { .. } => "uncertain",
            Self::Unsupported { .. } => "unsupported",
            Self::Refused { .. } => "refused",
            Self::Protocol { .. } => "protocol",
            Self::Full { .. } => "full",
            Self::NoBudget { .. } => "no_budget",
            Self::CostAboveLimit { .. } => "cost_above_limit",
            Self::NoValue { .. } => "no_value",
            Self::UnknownPolicy { .. } => "unknown_policy",
        }
    }

    /// Reports the error, as a failure of the store or as a mistake of the caller.
    pub(crate) fn report(&self) {
        match self.is_mistake() {
            true => telemetry::mistake(self.kind(), self),
            false => telemetry::store_error(self.kind(), self),
        }
    }

    /// Reports the error, and warns the first time that a cost can never pass.
    pub(crate) fn report_once(&self, is_warned: &AtomicBool) {
        self.report();
        if self.is_mistake() && !is_warned.swap(true, Ordering::Relaxed) {
            telemetry::never_passes(self);
        }
    }

    /// Returns whether the error is a mistake of the caller, and no failure of the store.
    pub(crate) const fn is_mistake(&self) -> bool {
        matches!(
            self,
            Self::Configuration { .. }
                | Self::CostAboveLimit { .. }
                | Self::NoBudget { .. }
                | Self::Unsupported { .. }
                | Self::NoValue { .. }
                | Self::UnknownPolicy { .. }
        )
    }

    /// Returns whether the store may have counted the request although no reply arrived that says so.
    pub const fn may_have_counted(&self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::Disconnected { .. }
                | Self::Uncertain { .. }
                | Self::Protocol { .. }
        )
    }

    /// Returns whether the failure policy `Local` decides in place of the store.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Uncertain { error } => error.is_outage(),
            _ => !self.is_mistake() && !matches!(self, Self::Overloaded),
        }
    }

    /// Returns whether the request was passed to a connection.
    pub(crate) const fn was_sent(&self) -> bool {
        !matches!(self, Self::Unavailable | Self::Overloaded | Self::Unsupported { .. })
    }
}
