//! [`Overrides`]: other quotas for single keys, and keys without a limit.

#[cfg(feature = "serde")]
mod document;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ahash::RandomState;
use arc_swap::ArcSwap;

use crate::key::Key;
use crate::policy::{Policy, PolicyError, PolicyHandle};

const EXEMPT: &str = "exempt";

/// A policy with other quotas for single keys, and with keys that are exempt. Both can be changed while
/// they are in use.
///
/// Clones share the overrides. An override without a name has the name of the policy, and its penalty unless it
/// brings one, as they are when it is used. It counts what the policy counts. Every override takes memory until it is removed.
///
/// A key keeps its log when its override is set, changed or removed, as long as no window of the override
/// is longer than the [retention](Policy::retention) of the policy. An override with a longer window, or with a
/// [`keep_for`](Policy::keep_for) of its own, has a log of its own.
///
/// ```
/// use tower_sliding_window::{Key, Overrides, Policy, PolicyError, Quota};
///
/// # fn main() -> Result<(), PolicyError> {
/// let users = Overrides::new(Policy::new("user").quota(Quota::per_minute(5)));
/// users.set("alice", "100/60s".parse()?)?;
/// users.set("monitor", "exempt".parse()?)?;
///
/// let quotas = |key: &str| users.get(&Key::from(key)).map(|policy| policy.get().to_string());
/// assert_eq!(quotas("alice"), Some("100/60s".to_owned()));
/// assert_eq!(quotas("bob"), Some("5/60s".to_owned()));
/// assert_eq!(quotas("monitor"), None);
/// # Ok(())
/// # }
/// ```
///
/// [`SlidingWindowLayer::choosing`](crate::SlidingWindowLayer::choosing) takes `move |_, key| users.get(key)`.
#[derive(Clone)]
#[must_use]
pub struct Overrides {
    policy: PolicyHandle,
    by_key: Arc<ArcSwap<ByKey>>,
}

/// The policy of each key with an override, `None` if the key is exempt.
type ByKey = HashMap<Key, Option<Arc<OfKey>>, RandomState>;

/// The policy of a key.
struct OfKey {
    /// The override.
    new: Policy,
    /// What was last made of it, and of which version of the common policy. Requests that share their policy share calls to
    /// Redis.
    made: ArcSwap<(Arc<Policy>, PolicyHandle)>,
}

impl OfKey {
    /// Returns the policy, with what it has in common with all keys as that is now.
    fn get(&self, common: &PolicyHandle) -> PolicyHandle {
        let common = common.get();
        let made = self.made.load();
        // Who has read an earlier version may store what it has made of that. The next one makes it anew.
        if !Arc::ptr_eq(&made.0, &common)
            && let Ok(policy) = common.overridden_by(self.new.clone())
        {
            let handle = PolicyHandle::of(policy);
            self.made.store(Arc::new((common, handle.clone())));
            return handle;
        }
        made.1.clone()
    }
}

impl Overrides {
    /// Creates a policy without overrides.
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many. [`PolicyHandle::try_new`] returns an error instead.
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>) -> Self {
        Self { policy: policy.into(), by_key: Arc::default() }
    }

    /// Returns the policy of a key as it is now, or `None` if the key is exempt.
    pub fn get(&self, key: &Key) -> Option<PolicyHandle> {
        self.override_of(key).unwrap_or_else(|| Some(self.policy.clone()))
    }

    /// Returns only the override of a key: `None` if it has none, and `Some(None)` if it is exempt.
    ///
    /// With it an override comes before another choice, such as that of a plan.
    ///
    /// ```
    /// use tower_sliding_window::{Key, Overrides, Policy, PolicyError, PolicyHandle, Quota};
    ///
    /// # fn main() -> Result<(), PolicyError> {
    /// let plan = |quota| PolicyHandle::new(Policy::new("user").quota(quota));
    /// let (free, paid) = (plan(Quota::per_minute(5)), plan(Quota::per_minute(100)));
    /// let users = Overrides::new(&free);
    /// users.set("alice", "200/60s".parse()?)?;
    ///
    /// let of_paid = |key: &Key| users.override_of(key).unwrap_or_else(|| Some(paid.clone()));
    /// let quotas = |key: &str| of_paid(&key.into()).map(|policy| policy.get().to_string());
    /// assert_eq!(quotas("alice"), Some("200/60s".to_owned()));
    /// assert_eq!(quotas("bob"), Some("100/60s".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn override_of(&self, key: &Key) -> Option<Option<PolicyHandle>> {
        let by_key = self.by_key.load();
        let of_key = by_key.get(key)?;
        Some(of_key.as_ref().map(|of_key| of_key.get(&self.policy)))
    }

    /// Sets the override of a key.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Renamed`] if the policy of the override has another name, whose logs would be
    /// others, and those of [`PolicyHandle::try_new`]. Then nothing has changed.
    pub fn set(&self, key: impl Into<Key>, new: Override) -> Result<(), PolicyError> {
        let (key, policy) = (key.into(), self.policy_of(new)?);
        self.change(|by_key| {
            by_key.insert(key.clone(), policy.clone());
        });
        Ok(())
    }

    /// Removes the override of a key.
    pub fn remove(&self, key: impl Into<Key>) {
        let key = key.into();
        self.change(|by_key| {
            by_key.remove(&key);
        });
    }

    /// Replaces all overrides at once, as from a configuration that was read again.
    ///
    /// # Errors
    ///
    /// Those of [`Overrides::set`]. Then nothing has changed.
    pub fn reload<K: Into<Key>>(
        &self,
        overrides: impl IntoIterator<Item = (K, Override)>,
    ) -> Result<(), PolicyError> {
        let new = overrides.into_iter().map(|(key, new)| Ok((key.into(), self.policy_of(new)?)));
        self.by_key.store(Arc::new(new.collect::<Result<ByKey, PolicyError>>()?));
        Ok(())
    }

    fn change(&self, change: impl Fn(&mut ByKey)) {
        self.by_key.rcu(|by_key| {
            let mut by_key = ByKey::clone(by_key);
            change(&mut by_key);
            by_key
        });
    }

    /// Returns the policy of an override.
    fn policy_of(&self, new: Override) -> Result<Option<Arc<OfKey>>, PolicyError> {
        let Override::Policy(new) = new else { return Ok(None) };
        let common = self.policy.get();
        let handle = PolicyHandle::try_new(common.overridden_by(new.clone())?)?;
        let made = ArcSwap::from_pointee((common, handle));
        Ok(Some(Arc::new(OfKey { new, made })))
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides")
            .field("policy", &self.policy)
            .field("keys", &self.by_key.load().len())
            .finish()
    }
}

/// What [`Overrides`] has for a key.
///
/// As text: `exempt`, or a policy such as `100/60s`. With the feature `serde` also a policy as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Override {
    /// The key has no limit under the policy.
    Exempt,
    /// The key has these quotas. Without a name the policy takes name and penalty of the one that
    /// it replaces, as in [`PolicyHandle::set`].
    Policy(Policy),
}

impl FromStr for Override {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text.trim() == EXEMPT { Ok(Self::Exempt) } else { text.parse().map(Self::Policy) }
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exempt => f.write_str(EXEMPT),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}
