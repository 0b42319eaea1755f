//! [`PolicyHandle`]: a policy that can be replaced while it is in use.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::{Policy, PolicyError};
use crate::quota::Quota;

/// A policy that can be replaced while limiters use it.
///
/// Clones share the policy: [`PolicyHandle::set`] on one takes effect at once in every limiter and
/// layer that has a clone. A decision uses the policy that was set when the decision began, never a
/// mixture. The logs stay, so a new limit counts the requests that were admitted under the old one. A
/// longer window begins with the entries that the shorter one still holds.
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
    /// If the policy has no quota.
    #[must_use]
    #[track_caller]
    pub fn new(policy: impl Into<Policy>) -> Self {
        match Self::try_new(policy) {
            Ok(handle) => handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a handle to a policy, or returns an error.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoQuota`] if the policy has no quota.
    pub fn try_new(policy: impl Into<Policy>) -> Result<Self, PolicyError> {
        let mut policy = policy.into().ensure_quota()?;
        policy.handle = HandleId::next();
        Ok(Self(Arc::new(ArcSwap::from_pointee(policy))))
    }

    /// Replaces the policy at once for every clone of this handle.
    ///
    /// A policy without a name, such as one made from a quota or parsed from text, replaces only the
    /// quotas: the name stays, and so do the penalty and the candidates unless the new policy has its
    /// own. A policy with a name replaces everything. If it has no penalty, bans are no longer
    /// enforced, and [`Bans::impose`](crate::Bans::impose) returns an error.
    /// [`set_candidates`](Self::set_candidates) replaces the candidates alone.
    ///
    /// The handles of other processes do not change.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoQuota`] if the new policy has no quota, and [`PolicyError::Renamed`] if it has
    /// another name, because its logs would be empty. The old policy then stays.
    pub fn set(&self, policy: impl Into<Policy>) -> Result<(), PolicyError> {
        let mut policy = policy.into().ensure_quota()?;
        let old = self.get();
        if !policy.is_named() {
            policy.name = old.name.clone();
            policy.penalty = policy.penalty.or_else(|| old.penalty.clone());
            if policy.candidates.is_empty() {
                policy.candidates = old.candidates.clone();
            }
        }
        if old.name != policy.name {
            return Err(PolicyError::Renamed {
                from: old.name().to_owned(),
                to: policy.name().to_owned(),
            });
        }
        policy.log_name = old.log_name.clone();
        self.replace(&policy);
        Ok(())
    }

    /// Replaces the candidates at once for every clone of this handle. The rest of the policy stays.
    ///
    /// ```
    /// use tower_sliding_window::{Penalty, Policy, PolicyHandle, Quota};
    ///
    /// let user = Policy::new("user").quota(Quota::per_minute(100)).penalty(Penalty::manual());
    /// let user = PolicyHandle::new(user);
    /// user.set_candidates([Quota::per_minute(20)]); // to try it
    /// user.set_candidates([]);
    /// assert!(user.get().candidates().is_empty());
    /// assert!(user.get().get_penalty().is_some());
    /// ```
    pub fn set_candidates(&self, candidates: impl IntoIterator<Item = Quota>) {
        let mut policy = Policy::clone(&self.get());
        policy.candidates = candidates.into_iter().collect();
        self.replace(&policy);
    }

    /// Replaces the policy by one that has the same log name.
    pub(super) fn replace(&self, policy: &Policy) {
        let handle = self.get().handle;
        self.0.store(Arc::new(Policy { handle, ..policy.clone() }));
    }

    /// Returns the present policy.
    #[must_use]
    pub fn get(&self) -> Arc<Policy> {
        self.0.load_full()
    }
}

/// The handle that a policy was set in, if any. It tells a new version of a policy from another policy
/// that shares its logs, and is no part of the policy's value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandleId(u64);

impl HandleId {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns whether two policies are versions of one, because they were set in the same handle.
    #[cfg(feature = "memory")]
    pub(crate) fn is_same(self, other: Self) -> bool {
        self.number().is_some() && self.number() == other.number()
    }

    /// Returns a number that all versions of a policy share, or `None` for a policy without a handle.
    pub(crate) fn number(self) -> Option<u64> {
        Some(self.0).filter(|number| *number > 0)
    }
}

impl PartialEq for HandleId {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HandleId {}

impl Hash for HandleId {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<P: Into<Policy>> From<P> for PolicyHandle {
    /// # Panics
    ///
    /// If the policy has no quota.
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
    use super::*;

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
    fn new_quotas_keep_penalty_and_candidates() {
        let (penalty, candidate) = ("3/10m:1h".parse().unwrap(), Quota::per_minute(1));
        let policy = Policy::new("user").quota(Quota::per_minute(5));
        let handle = PolicyHandle::new(policy.penalty(penalty).candidate(candidate));
        handle.set("8/60s".parse::<Policy>().unwrap()).unwrap();
        let now = handle.get();
        assert_eq!(now.to_string(), "8/60s");
        assert_eq!(now.get_penalty().unwrap().to_string(), "3/600s:1h");
        assert_eq!(now.candidates(), [candidate]);

        let other: Policy = "9/60s".parse().unwrap();
        handle.set(other.penalty("1/1h:1m".parse().unwrap())).unwrap();
        assert_eq!(handle.get().get_penalty().unwrap().to_string(), "1/1h:60s");
        handle.set(Policy::new("user").quota(Quota::per_minute(7))).unwrap();
        assert!(handle.get().get_penalty().is_none(), "a named policy replaces everything");
    }

    #[test]
    fn candidates_can_be_replaced_alone() {
        let quota = Quota::per_minute(5);
        for policy in [Policy::new("user").quota(quota), quota.into()] {
            let policy = policy.penalty("3/10m:1h".parse().unwrap());
            let handle = PolicyHandle::new(policy.clone().candidate(Quota::per_minute(1)));
            handle.set_candidates([Quota::per_minute(2), Quota::per_second(1)]);
            assert_eq!(handle.get().candidates(), [Quota::per_minute(2), Quota::per_second(1)]);
            handle.set_candidates([]);
            assert_eq!(*handle.get(), policy);
        }
    }

    #[test]
    fn logs_stay_the_same_after_changes() {
        let handle = PolicyHandle::new(Quota::per_minute(5));
        let before = handle.get();
        for policy in ["3/60s".parse().unwrap(), Policy::new("default").quota(Quota::per_second(1))]
        {
            handle.set(policy).unwrap();
            assert!(before.shares_logs_with(&handle.get()));
            assert!(before.shares_logs_with(&before.merged(&handle.get())));
        }
    }
}
