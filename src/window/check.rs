//! [`Check`]: a request for a decision.

use std::hash::{Hash, Hasher};
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;
use uuid::Uuid;

use super::identity::new_identity;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::policy::Policy;

/// The highest cost of a request. Each place is an entry of the log, and Redis serves no other
/// client while it writes them.
const HIGHEST_COST: u32 = 1024;

/// The identity of a log: a key and the policy that applies to it.
///
/// Two identities are equal if they name the same log: the key is the same, and so is the policies'
/// [`log_name`](Policy::log_name). The quotas may differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogId {
    /// The policy, as it was when the check was made.
    pub policy: Arc<Policy>,
    /// The key.
    pub key: Key,
}

impl LogId {
    /// Creates the identity of the log of a key under a policy.
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

/// A request for a decision, sent to a [`Store`](crate::store::Store): does the request fit into all
/// of these logs?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The identity of the request. A request counts once under one identity.
    pub id: Uuid,
    /// How many places the request takes, 0 to 1024. Defaults to 1.
    pub cost: u32,
    /// Whether the store may have counted a check of the same identity already. Defaults to `false`.
    pub repeated: bool,
    /// Whether the outcome must have [`QuotaState::reset`](super::QuotaState::reset). Defaults to
    /// `false`.
    pub wants_reset: bool,
    /// Whether the outcome must have [`Outcome::timestamp`](super::Outcome::timestamp). Defaults to
    /// `false`.
    pub wants_timestamp: bool,
    /// What happens to the request if the store can't decide. Defaults to `Local` with one instance.
    pub on_failure: FailurePolicy,
    pub(crate) logs: SmallVec<[LogId; 1]>,
}

impl Check {
    /// Creates the check of a new request.
    ///
    /// If a log is given twice, it is checked once, under the quotas of both policies.
    pub fn new(logs: impl IntoIterator<Item = LogId>) -> Self {
        Self::from_logs(logs.into_iter().collect())
    }

    /// Creates the check of a new request, without a copy of the logs.
    #[inline]
    pub(crate) fn from_logs(logs: SmallVec<[LogId; 1]>) -> Self {
        Self {
            id: new_identity(),
            cost: 1,
            repeated: false,
            wants_reset: false,
            wants_timestamp: false,
            on_failure: FailurePolicy::default(),
            logs: if logs.len() < 2 { logs } else { distinct(logs) },
        }
    }

    /// Returns the logs. No log occurs twice.
    #[must_use]
    pub fn logs(&self) -> &[LogId] {
        &self.logs
    }

    /// Returns the check with the limits of one of several `instances` that decide independently, or
    /// `None` if the cost is above such a limit.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(self: &Arc<Self>, instances: NonZeroU32) -> Option<Arc<Self>> {
        if instances == NonZeroU32::MIN {
            return Some(self.clone());
        }
        let mut check = Self::clone(self);
        for log in &mut check.logs {
            log.policy = log.policy.shared_among(instances);
        }
        check.ensure_possible().is_ok().then(|| Arc::new(check))
    }

    /// Returns an error if no store could ever admit the request.
    #[inline]
    pub(crate) fn ensure_possible(&self) -> Result<(), StoreError> {
        ensure_cost(self.cost)?;
        let quotas = self.logs.iter().flat_map(|log| log.policy.quotas());
        match quotas.map(|quota| quota.limit()).min() {
            Some(limit) if self.cost > limit => {
                Err(StoreError::CostAboveLimit { cost: self.cost, limit })
            }
            _ => Ok(()),
        }
    }
}

/// Returns an error if a request can't take that many places, whatever the limits are.
#[inline]
pub(crate) fn ensure_cost(cost: u32) -> Result<(), StoreError> {
    if cost > HIGHEST_COST {
        return Err(StoreError::CostTooHigh { cost, most: HIGHEST_COST });
    }
    Ok(())
}

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
