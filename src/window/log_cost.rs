//! [`LogCost`]: a log of a check, and how many places the request takes in it.

use crate::key::Key;
use crate::policy::PolicyHandle;

use super::LogId;

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
