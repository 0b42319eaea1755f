//! [`PolicyHandle`]: a policy that can be replaced while it is in use.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use super::{Policy, PolicyChange, PolicyError};
use crate::error::or_panic;

/// A policy that can be replaced while limiters use it.
///
/// Clones share the policy: [`PolicyHandle::set`] on one takes effect at once in every limiter and
/// layer that has a clone. A decision uses the policy that was set when the decision began, never a
/// mixture.
///
/// The logs stay, so a new limit counts the requests that were admitted under the old one, and bans stay in any case. A
/// window that is longer than the [retention](Policy::retention) begins new, empty logs, and the returned
/// [`PolicyChange`] says so: [`Policy::keep_for`] avoids that. The handle keeps its retention if the windows become
/// shorter. A process that starts with such a policy has logs of its own, and counts separately, unless both have
/// `keep_for`: the change says so, too. [The guide](crate::docs::configuration) has a table. Name a policy that changes,
/// for logs without a name are those of its first quotas. While the servers of a fleet are being changed one after the
/// other, those with the old and those with the new logs count separately.
///
/// [`Policies`](super::Policies) is a set of handles, all of which a configuration replaces at once.
///
/// ```
/// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota};
///
/// let policy = PolicyHandle::new(Quota::per_minute(100));
/// let limiter = Limiter::new(policy.clone(), MemoryStore::new());
/// policy.set(Quota::per_minute(20))?;
/// assert_eq!(limiter.policy().to_string(), "20/60s");
/// assert!(policy.set(Policy::new("other")).is_err(), "no quota: the old policy stays");
/// # Ok::<(), tower_sliding_window::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyHandle(Arc<ArcSwap<Policy>>);

impl PolicyHandle {
    /// Creates a handle to a policy.
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many.
    #[track_caller]
    pub fn new(policy: impl Into<Policy>) -> Self {
        or_panic(Self::try_new(policy))
    }

    /// Creates a handle to a policy, or returns an error.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoQuota`] if the policy has no quota, and [`PolicyError::TooManyQuotas`] if it has more
    /// than 16.
    pub fn try_new(policy: impl Into<Policy>) -> Result<Self, PolicyError> {
        policy.into().ensure_quotas().map(Self::of)
    }

    pub(crate) fn of(policy: Policy) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(policy)))
    }

    /// Replaces the policy at once for every clone of this handle, and returns what has changed.
    ///
    /// A policy without a name, such as one made from a quota or parsed from text, replaces only the
    /// quotas: the name stays, and so does the penalty unless the new policy has its own. A policy with a name replaces everything. If it has no penalty, bans are no longer
    /// enforced, and [`Bans::impose`](crate::Bans::impose) returns an error.
    ///
    /// What the policy [counts](Policy::counts) stays as it was, whatever the new policy counts: the rule that uses
    /// it was made for that.
    ///
    /// The handles of other processes do not change.
    ///
    /// # Errors
    ///
    /// Those of [`PolicyHandle::try_new`], and [`PolicyError::Renamed`] if the new policy has
    /// another name, because its logs would be empty. The old policy then stays.
    pub fn set(&self, policy: impl Into<Policy>) -> Result<PolicyChange, PolicyError> {
        let policy = policy.into();
        // What is wrong with it before its name is compared.
        policy.ensure_limits()?;
        // With the penalty that it keeps.
        self.change(|old| old.replaced_by(policy.clone())?.ensure_quotas())
    }

    /// Replaces the policy by what `next` makes of it. Concurrent changes take effect one after the other.
    pub(super) fn change<E>(
        &self,
        next: impl Fn(&Policy) -> Result<Policy, E>,
    ) -> Result<PolicyChange, E> {
        let mut before = self.0.load_full();
        loop {
            let after = Arc::new(next(&before)?);
            let found = self.0.compare_and_swap(&before, after.clone());
            if Arc::ptr_eq(&found, &before) {
                return Ok(PolicyChange::new(Some(before), after));
            }
            before = Guard::into_inner(found);
        }
    }

    /// Returns the present policy.
    pub fn get(&self) -> Arc<Policy> {
        self.0.load_full()
    }
}

impl<P: Into<Policy>> From<P> for PolicyHandle {
    /// # Panics
    ///
    /// If the policy has no quota or too many.
    #[track_caller]
    fn from(policy: P) -> Self {
        Self::new(policy)
    }
}

impl From<&PolicyHandle> for PolicyHandle {
    fn from(handle: &PolicyHandle) -> Self {
        handle.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::{Counts, Penalty};
    use crate::quota::Quota;

    #[test]
    fn wrong_policy_changes_nothing() {
        let handle = PolicyHandle::new(Policy::new("user").quota(Quota::per_second(1)));
        let before = handle.get();
        assert!(matches!(handle.set(Policy::new("user")), Err(PolicyError::NoQuota { .. })));
        let other = Policy::new("other").quota(Quota::per_second(9));
        assert!(matches!(handle.set(other), Err(PolicyError::Renamed { .. })));
        assert!(Arc::ptr_eq(&before, &handle.get()));
        handle.set(Quota::per_second(9)).unwrap();
        assert_eq!(handle.get().name(), "user", "a quota keeps the name");
    }

    #[test]
    fn new_quotas_keep_the_penalty() {
        let policy = Policy::new("user").quota(Quota::per_minute(5));
        let handle = PolicyHandle::new(policy.penalty("3/10m:1h".parse().unwrap()));
        handle.set("8/60s".parse::<Policy>().unwrap()).unwrap();
        let now = handle.get();
        assert_eq!(now.to_string(), "8/60s");
        assert_eq!(now.get_penalty().unwrap().to_string(), "3/600s:1h");

        let other: Policy = "9/60s".parse().unwrap();
        handle.set(other.penalty("1/1h:1m".parse().unwrap())).unwrap();
        assert_eq!(handle.get().get_penalty().unwrap().to_string(), "1/1h:60s");
        handle.set(Policy::new("user").quota(Quota::per_minute(7))).unwrap();
        assert!(handle.get().get_penalty().is_none(), "a named policy replaces everything");
    }

    #[test]
    fn what_a_policy_counts_stays() {
        let accounts = || Policy::new("accounts").quota(Quota::per_minute(5));
        let handle = PolicyHandle::new(accounts().distinct());
        for policy in [accounts(), accounts().in_flight(), "9/60s".parse().unwrap()] {
            assert!(!handle.set(policy).unwrap().begins_new_logs());
            assert_eq!(handle.get().counts(), Counts::Distinct);
            assert_eq!(handle.get().log_name(), "accounts:60s:distinct");
        }
    }

    #[test]
    fn logs_stay_until_a_window_is_longer_than_they_are_kept() {
        let handle = PolicyHandle::new(Quota::per_minute(5));
        let before = handle.get();
        for policy in ["3/60s".parse().unwrap(), Policy::new("default").quota(Quota::per_second(1))]
        {
            assert!(!handle.set(policy).unwrap().begins_new_logs());
            assert!(before.logs() == handle.get().logs());
            assert!(before.logs() == before.merged(&handle.get()).logs());
        }
        assert!(handle.set(Quota::per_hour(9)).unwrap().begins_new_logs());
        assert_eq!(handle.get().log_name(), "default:5/60s:1h");
        for quota in [Quota::per_minute(5), Quota::per_hour(5)] {
            assert!(!handle.set(quota).unwrap().begins_new_logs(), "once");
        }
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let user = |quota| Policy::new("user").quota(quota);
        let handle = PolicyHandle::new(user(Quota::per_minute(5)));
        for round in 1..500 {
            let length = Duration::from_secs(round.into());
            let penalty = Penalty::new(Quota::per_hour(3), [length]);
            std::thread::scope(|scope| {
                // Keeps the penalty that it finds.
                scope.spawn(|| handle.set(Quota::per_minute(round)).unwrap());
                let whole = user(Quota::per_second(1)).penalty(penalty.clone());
                scope.spawn(|| handle.set(whole).unwrap());
            });
            assert_eq!(handle.get().get_penalty(), Some(&penalty));
        }
    }
}
