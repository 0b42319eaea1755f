//! [`Policies`]: a set of policies by name, all of which a reload replaces.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::{Policy, PolicyError, PolicyHandle};
use crate::error::or_panic;
use crate::quota::Span;

/// A set of policies by name, from a configuration that can be loaded again while the program runs.
///
/// [`Policies::get`] returns the handle of a policy, for layers, limiters and bans. [`Policies::reload`]
/// replaces the policies behind these handles. What becomes of the logs is as with [`PolicyHandle::set`].
///
/// With the feature `serde` the set is a map of names to [policies](Policy). A name that occurs twice, an unknown field
/// and an empty set are errors. An error says what is wrong, and the format adds the line and the column.
/// [The guide](crate::docs::configuration) has an example.
///
/// Clones share the set.
#[derive(Clone)]
pub struct Policies(Arc<RwLock<Handles>>);

type Handles = BTreeMap<Arc<str>, PolicyHandle>;

impl Policies {
    /// Creates a set of policies.
    ///
    /// # Panics
    ///
    /// Where [`Policies::try_new`] returns an error.
    #[track_caller]
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        or_panic(Self::try_new(policies))
    }

    /// Creates a set of policies, or returns an error. A policy without a name is named `default`.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoPolicy`] if there is none, those of [`PolicyHandle::try_new`], and
    /// [`PolicyError::Duplicate`] if two have the same name.
    pub fn try_new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, PolicyError> {
        let mut handles = Handles::new();
        for policy in policies {
            let name: Arc<str> = policy.name().into();
            let handle = PolicyHandle::try_new(policy.named(&name))?;
            if handles.insert(name.clone(), handle).is_some() {
                return Err(PolicyError::Duplicate { name: name.as_ref().to_owned() });
            }
        }
        if handles.is_empty() {
            return Err(PolicyError::NoPolicy);
        }
        Ok(Self(Arc::new(RwLock::new(handles))))
    }

    /// Returns the handle of a policy, or `None` if the set has no policy of this name. It stays the
    /// same after each [`Policies::reload`].
    pub fn get(&self, name: &str) -> Option<PolicyHandle> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns the present policies, sorted by name.
    pub fn all(&self) -> Vec<Arc<Policy>> {
        let handles = self.0.read().unwrap_or_else(PoisonError::into_inner);
        handles.values().map(PolicyHandle::get).collect()
    }

    /// Replaces all policies by those of another set, and returns what has changed, sorted by name.
    ///
    /// Handles that [`Policies::get`] has returned take effect at once in every limiter and layer. A
    /// policy is replaced whole, as by [`PolicyHandle::set`] with a policy that has a name: a penalty that
    /// the new policy lacks is gone. Only what a policy [counts](Policy::counts) stays as it
    /// was. A policy of a new name is added.
    ///
    /// The new set is checked before the first policy is replaced, and reloads take effect one after the
    /// other. A decision under several policies that begins during a reload may use some policies of
    /// before it and some of after it, but no mixture of one policy.
    ///
    /// Other processes have to reload too.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Missing`] if the new set lacks a policy of this one, also because it has another
    /// name: a rule that uses it would have no limit, and its logs are kept by name. Then nothing has
    /// changed. To remove a policy, restart the program.
    pub fn reload(&self, new: Self) -> Result<Vec<PolicyChange>, PolicyError> {
        // A copy, because `new` may share its handles with this set.
        let new = new.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut handles = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let missing = handles.keys().filter(|name| !new.contains_key(*name));
        let missing: Vec<String> = missing.map(|name| format!("{name:?}")).collect();
        if !missing.is_empty() {
            return Err(PolicyError::Missing { names: missing.join(", ") });
        }
        let mut changes = Vec::new();
        for (name, new) in new {
            let after = new.get();
            let Some(handle) = handles.get(&name) else {
                handles.insert(name, new);
                changes.push(PolicyChange::new(None, after));
                continue;
            };
            // What is cached about denials stays valid as long as nothing changes.
            if *handle.get() == handle.get().next_version(Policy::clone(&after)) {
                continue;
            }
            let next = |before: &Policy| Ok(before.next_version(Policy::clone(&after)));
            let change = handle.change(next)?;
            // Another `keep_for` that leaves the retention as it was shows nothing.
            if change.to_string() != change.name() {
                changes.push(change);
            }
        }
        Ok(changes)
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all()).finish()
    }
}

/// A policy that [`PolicyHandle::set`] has replaced, or [`Policies::reload`] has changed or added.
///
/// As text: `user: quotas 5/60s -> 8/60s, penalty none -> 3/600s:60s`, or `vip: new, quotas 100/60s`. It ends in `, new
/// logs` if the logs begin anew, and in `, logs kept for 1h: other processes need keep_for 1h` if the policy alone
/// would keep them for a shorter time, as it does in a process that starts now. After [`PolicyHandle::set`] with an
/// equal policy it is the name alone: [`Policies::reload`] returns no such change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    before: Option<Arc<Policy>>,
    after: Arc<Policy>,
}

impl PolicyChange {
    pub(super) fn new(before: Option<Arc<Policy>>, after: Arc<Policy>) -> Self {
        Self { before, after }
    }

    /// Returns the policy's name.
    pub fn name(&self) -> &str {
        self.after.name()
    }

    /// Returns whether the logs begin anew, without the requests that were admitted before, because a
    /// window is longer than the old logs were kept, or because [`Policy::keep_for`] has changed.
    pub fn begins_new_logs(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.log_name() != self.after.log_name())
    }
}

impl fmt::Display for PolicyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = parts(&self.after);
        let mut separator = ": ";
        f.write_str(self.name())?;
        let Some(before) = &self.before else {
            f.write_str(": new")?;
            let present = after.iter().filter(|(_, text)| text != NONE);
            return present.into_iter().try_for_each(|(part, text)| write!(f, ", {part} {text}"));
        };
        for ((part, old), (_, new)) in parts(before).iter().zip(&after) {
            if old != new {
                write!(f, "{separator}{part} {old} -> {new}")?;
                separator = ", ";
            }
        }
        if self.begins_new_logs() {
            write!(f, "{separator}new logs")?;
            separator = ", ";
        }
        let (after, kept_us) = (&self.after, self.after.retention_us());
        if kept_us > after.kept_us.max(after.longest_window_us()) {
            let kept = Span(kept_us);
            write!(f, "{separator}logs kept for {kept}: other processes need ")?;
            // Without a name, logs are those of the first quotas.
            let name = if self.after.is_named() { "" } else { "a name and " };
            write!(f, "{name}keep_for {kept}")?;
        }
        Ok(())
    }
}

const NONE: &str = "none";

/// Returns the parts of a policy as text.
fn parts(policy: &Policy) -> [(&'static str, String); 2] {
    let penalty = policy.get_penalty().map_or_else(|| NONE.to_owned(), ToString::to_string);
    [("quotas", policy.to_string()), ("penalty", penalty)]
}
