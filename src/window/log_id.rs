//! [`LogId`]: the identity of a log, and [`LogCost`]: how many places a request takes in it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::key::Key;
use crate::policy::{Policy, PolicyHandle};

/// The identity of a log: a key and the policy that applies to it.
///
/// Two identities are equal if they name the same log: the key is the same, and so is the policies'
/// [`log_name`](Policy::log_name), which has the name and the retention. The quotas may differ.
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
        state.write_u64(self.policy.log_name_hash());
        self.key.hash(state);
    }
}

/// A log of a request, and how many places the request takes in it.
///
/// It is made from a policy and a key, with a cost of 1, and from a policy, a key and a cost.
#[derive(Clone, Debug)]
pub struct LogCost {
    pub(super) log: LogId,
    pub(super) cost: u32,
}

impl LogCost {
    /// Creates a log with a cost.
    #[must_use]
    pub fn new(log: LogId, cost: u32) -> Self {
        Self { log, cost }
    }
}

impl<P: Into<PolicyHandle>, K: Into<Key>> From<(P, K)> for LogCost {
    fn from((policy, key): (P, K)) -> Self {
        (policy, key, 1).into()
    }
}

impl<P: Into<PolicyHandle>, K: Into<Key>> From<(P, K, u32)> for LogCost {
    fn from((policy, key, cost): (P, K, u32)) -> Self {
        Self::new(LogId { policy: policy.into().get(), key: key.into() }, cost)
    }
}
