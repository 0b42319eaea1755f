//! [`LogId`]: the identity of a log, and [`LogCost`]: how many places a request takes in it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

use super::costs::Cost;
use crate::key::Key;
use crate::policy::{Counts, Policy, PolicyHandle};

/// The identity of a log: a key and the policy that applies to it.
///
/// Two identities are equal if they name the same log: the key is the same, and so is the policies'
/// [`log_name`](Policy::log_name), which has the name, the retention and what is counted. The quotas may differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogId {
    /// The policy, as it was when the check was made.
    pub policy: Arc<Policy>,
    /// The key.
    pub key: Key,
    /// Boxed, because most policies have none.
    pub(crate) value: Option<Box<Uuid>>,
}

impl LogId {
    /// Creates the identity of the log of a key under a policy.
    pub fn new(policy: Arc<Policy>, key: impl Into<Key>) -> Self {
        Self { policy, key: key.into(), value: None }
    }

    /// Sets the value of a request whose policy counts [distinct](Policy::distinct) values. Other policies ignore it.
    pub fn with_value(mut self, value: impl Into<Key>) -> Self {
        self.value = Some(Box::new(value.into().entry_id()));
        self
    }

    /// Returns the entry of a request whose policy counts [distinct](Policy::distinct) values: a hash of its value. It
    /// is no part of the identity, so a check has one value for a log: if it has the log twice, the first value
    /// counts.
    pub fn value(&self) -> Option<Uuid> {
        self.value.as_deref().copied()
    }

    /// Returns the identity of a request's entry in the log. A check without a value has one that no log has.
    pub(crate) fn entry_id(&self, request: Uuid) -> Uuid {
        match self.policy.counts() {
            Counts::Distinct => self.value().unwrap_or_default(),
            _ => request,
        }
    }

    pub(crate) fn is_budget(&self) -> bool {
        self.policy.counts().is_budget()
    }

    /// Returns the cost that the log keeps with an entry, if it is a budget.
    pub(super) fn kept_cost(&self, cost: u32) -> Option<Cost> {
        self.is_budget().then(|| Cost::of(cost))
    }

    /// Returns what a request takes in the log once it is settled at `cost`, or `None` if the log
    /// stays as it is: a value was seen, whatever became of the request.
    pub(crate) fn settled_cost(&self, cost: u32) -> Option<u32> {
        match self.policy.counts() {
            Counts::Budget | Counts::ByteBudget => Some(cost),
            Counts::Requests | Counts::InFlight => Some(cost.min(1)),
            Counts::Distinct => None,
        }
    }
}

impl PartialEq for LogId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.logs() == other.policy.logs()
    }
}

impl Eq for LogId {}

impl Hash for LogId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.policy.log_name().hash(state);
        self.key.hash(state);
    }
}

/// A log of a request, and how many places the request takes in it.
///
/// Converts from `(policy, key)`, at a cost of 1, and from `(policy, key, cost)`.
#[derive(Clone, Debug)]
pub struct LogCost {
    pub(super) log: LogId,
    pub(super) cost: u32,
}

impl LogCost {
    /// Creates a log with a cost.
    pub fn new(log: LogId, cost: u32) -> Self {
        Self { log, cost }
    }

    /// Sets the value of a request whose policy counts [distinct](Policy::distinct) values. Other policies ignore it.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, LogCost, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let messages = PolicyHandle::new(Policy::new("messages").quota(Quota::per_minute(20)));
    /// let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::per_minute(1)).distinct());
    /// let limiter = Limiter::new(messages.clone(), MemoryStore::new());
    /// let send = |to| [LogCost::from((&messages, "alice")), LogCost::from((&peers, "alice")).value(to)];
    /// assert!(limiter.check_all(send("bob")).await?.is_admitted());
    /// assert!(limiter.check_all(send("bob")).await?.is_admitted());
    /// assert!(!limiter.check_all(send("carol")).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub fn value(mut self, value: impl Into<Key>) -> Self {
        self.log = self.log.with_value(value);
        self
    }
}

impl<P: Into<PolicyHandle>, K: Into<Key>> From<(P, K)> for LogCost {
    #[track_caller]
    fn from((policy, key): (P, K)) -> Self {
        (policy, key, 1).into()
    }
}

impl<P: Into<PolicyHandle>, K: Into<Key>> From<(P, K, u32)> for LogCost {
    #[track_caller]
    fn from((policy, key, cost): (P, K, u32)) -> Self {
        Self::new(LogId::new(policy.into().get(), key), cost)
    }
}
