//! [`Check`]: one request for a decision, sent to a store.

use std::hash::{Hash, Hasher};
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::policy::Policy;

/// The highest cost of a request. Each place it takes is an entry of the log, written while
/// Redis does nothing else.
const HIGHEST_COST: u32 = 1024;

/// Which log: the key, and the policy it is held to.
///
/// Two are equal if they name the same log: the same key under policies of the same
/// [`log_name`](Policy::log_name), whatever their quotas.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogId {
    /// The policy, as it was when the decision began.
    pub policy: Arc<Policy>,
    /// The key whose log it is.
    pub key: Key,
}

impl LogId {
    /// Names the log of a key under a policy.
    #[must_use]
    pub fn new(policy: Arc<Policy>, key: impl Into<Key>) -> Self {
        Self { policy, key: key.into() }
    }
}

impl PartialEq for LogId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.shares_logs_with(&other.policy)
    }
}

impl Eq for LogId {}

impl Hash for LogId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.policy.log_name().hash(state);
        self.key.hash(state);
    }
}

/// One request for a decision: does the request fit into all of these logs?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The request's identity, under which it counts once.
    pub id: Uuid,
    /// How many places the request takes, 0 to 1024. Defaults to 1.
    pub cost: u32,
    /// Whether a check of the same identity may have been counted already. Defaults to `false`.
    pub repeated: bool,
    /// Whether [`QuotaState::reset`](super::QuotaState::reset) is wanted. Defaults to `false`.
    pub wants_reset: bool,
    /// Whether [`Outcome::timestamp`](super::Outcome::timestamp) is wanted. Defaults to `false`.
    pub wants_timestamp: bool,
    /// What becomes of the request if the store can't decide. Defaults to `Local` with one
    /// instance.
    pub on_failure: FailurePolicy,
    pub(crate) logs: SmallVec<[LogId; 1]>,
}

impl Check {
    /// Creates the check of a new request.
    ///
    /// A log that is given twice is checked once, under the quotas of both.
    pub fn new(logs: impl IntoIterator<Item = LogId>) -> Self {
        Self::of(logs.into_iter().collect())
    }

    /// Creates the check of a new request from logs that are collected already.
    pub(crate) fn of(logs: SmallVec<[LogId; 1]>) -> Self {
        Self {
            id: Uuid::new_v4(),
            cost: 1,
            repeated: false,
            wants_reset: false,
            wants_timestamp: false,
            on_failure: FailurePolicy::default(),
            logs: if logs.len() < 2 { logs } else { distinct(logs) },
        }
    }

    /// Returns the logs, no two the same. There is at least one.
    #[must_use]
    pub fn logs(&self) -> &[LogId] {
        &self.logs
    }

    /// Returns the check for one of so many processes that each decide alone: none if the request
    /// takes more places than that process has.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(self: &Arc<Self>, instances: NonZeroU32) -> Option<Arc<Self>> {
        if instances == NonZeroU32::MIN {
            return Some(self.clone());
        }
        let mut check = Self::clone(self);
        for log in &mut check.logs {
            log.policy = log.policy.shared_among(instances);
        }
        check.possible().is_ok().then(|| Arc::new(check))
    }

    /// Returns an error if the request could never pass.
    pub(crate) fn possible(&self) -> Result<(), StoreError> {
        if self.cost > HIGHEST_COST {
            return Err(StoreError::CostTooHigh { cost: self.cost, most: HIGHEST_COST });
        }
        let quotas = self.logs.iter().flat_map(|log| log.policy.quotas());
        match quotas.map(|quota| quota.limit()).min() {
            Some(limit) if self.cost > limit => {
                Err(StoreError::CostAboveLimit { cost: self.cost, limit })
            }
            _ => Ok(()),
        }
    }
}

/// Merges logs that are given twice into one, with the quotas of both.
fn distinct(logs: SmallVec<[LogId; 1]>) -> SmallVec<[LogId; 1]> {
    let mut distinct: SmallVec<[LogId; 1]> = SmallVec::new();
    for log in logs {
        match distinct.iter_mut().find(|other| **other == log) {
            Some(other) => other.policy = other.policy.merged(&log.policy),
            None => distinct.push(log),
        }
    }
    distinct
}
