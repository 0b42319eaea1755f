//! [`Policies`]: the thresholds of the fleet, changed while it runs.

mod change;
mod reload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};

use tokio::sync::Mutex;
use tower_sliding_window::StoreError;

pub(crate) use self::change::{Change, ChangeError};
use crate::entry::Entry;
use crate::levels::Levels;
use crate::sum::Global;
use crate::thresholds::{Target, Thresholds, UnknownTarget};
use example_support::lock;
use example_support::policies::{Changes, Shared, Versioned};

/// How often a change is tried again because another server was faster.
const ATTEMPTS: u32 = 10;
/// How many members each list may have.
const MOST_MEMBERS: usize = 1000;
/// How many targets changes are kept for.
const MOST_CHANGES: usize = 4 * MOST_MEMBERS;

/// Changes the lists and thresholds and keeps them the same on every server that shares a Redis.
pub(crate) struct Policies {
    /// The thresholds of the flags or of the file, which hold where an operator has changed nothing.
    base: StdMutex<Thresholds>,
    global: Global,
    levels: Arc<Levels>,
    shared: Option<Shared>,
    /// Locked during each change, so that this server makes or takes over one at a time.
    known: Mutex<Changes>,
    /// The version of the known changes, for readers that can't wait for the lock.
    version: AtomicU64,
}

impl Policies {
    /// Creates the policies of a single server. They last as long as it runs.
    pub(crate) fn alone(levels: Arc<Levels>, global: Global) -> Self {
        let base = StdMutex::new(levels.configured());
        let (known, version) = Default::default();
        Self { base, global, levels, shared: None, known, version }
    }

    /// Creates the policies of a fleet, and takes over earlier changes.
    pub(crate) async fn shared(
        levels: Arc<Levels>,
        global: Global,
        shared: Shared,
    ) -> Result<Self, StoreError> {
        let mut policies = Self::alone(levels, global);
        policies.shared = Some(shared);
        policies.take_over(&mut *policies.known.lock().await).await?;
        Ok(policies)
    }

    /// Holds the global rate against the sum of the institutions, once the changes that are kept in
    /// Redis are taken over.
    ///
    /// # Errors
    ///
    /// A text that says what to do if the rate is below the sum.
    pub(crate) fn check_sum(&self) -> Result<(), String> {
        let sum = self.levels.configured().sum();
        let burst = sum.burst_above(self.global);
        sum.check(self.global).map_err(|error| {
            format!(
                "{error}\n\
                 hint: start with --global {}/1s or more on each of the --servers, or lower \
                 --institution-limit or the limit of an --institution, or their limits in the file of \
                 --policies; policies that were changed by PUT /policies are kept in Redis and replace \
                 these",
                error.enough()
            )
        })?;
        if let Some(burst) = burst {
            let global = self.global.each;
            tracing::warn!(
                "the levels may admit {burst} parts at once, and the bucket of --global {global} holds \
                 fewer: the rest get 503. A longer window of the same rate, such as 6000/60s for \
                 100/1s, holds more"
            );
        }
        Ok(())
    }

    /// Returns the version of the policies, which every change raises.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns whether other servers may have made changes that this one could not read.
    pub(crate) fn are_stale(&self) -> bool {
        self.shared.as_ref().is_some_and(Shared::is_stale)
    }

    /// Makes one change: here at once, on the other servers when they next read Redis. Returns whether
    /// the target is new, which only [`Change::Put`] allows.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] if the change is not possible. Then nothing has changed.
    pub(crate) async fn change(
        &self,
        target: &Target,
        entry: &Entry,
        change: Change,
    ) -> Result<bool, ChangeError> {
        let mut known = self.known.lock().await;
        for _ in 0..ATTEMPTS {
            self.take_over(&mut known).await?;
            let mut thresholds = self.levels.configured();
            let is_new = thresholds.get(target).is_err();
            if is_new && change == Change::OfMembers {
                return Err(UnknownTarget.into());
            }
            let before = thresholds.sum();
            thresholds.set(target, entry)?;
            if is_new && thresholds.lists.iter().any(|list| list.len() > MOST_MEMBERS) {
                return Err(ChangeError::TooMany);
            }
            let after = thresholds.sum();
            // A sum that is already too high, for another server has a higher global rate, may still
            // be lowered.
            if after.rate() > before.rate() {
                after.check(self.global)?;
            }
            let mut changes = known.clone();
            changes.forget(MOST_CHANGES, |target, entry| self.must_know(target, entry));
            changes.set(target.to_string(), entry.to_string());
            // A server that has changed something meanwhile has raised the version, and this put is
            // refused.
            if let Some(shared) = &self.shared
                && !shared.put(&changes, known.version).await?
            {
                continue;
            }
            let (what, version) = (target.to_string(), changes.version);
            tracing::info!(target = ?what, entry = ?entry.to_string(), version, "a policy was changed");
            self.apply(&mut known, thresholds, changes);
            return Ok(is_new);
        }
        Err(ChangeError::Contended)
    }

    /// Takes over the changes of other servers again and again, if there are others.
    pub(crate) async fn run(&self) {
        let look = || async {
            if self.take_over(&mut *self.known.lock().await).await?
                && let Err(error) = self.levels.configured().sum().check(self.global)
            {
                tracing::warn!(%error, "other servers have changed the policies beyond --global");
            }
            Ok(())
        };
        if let Some(shared) = &self.shared {
            shared.follow(look).await;
        }
    }

    /// Takes over the changes of other servers. Returns whether there were any.
    async fn take_over(&self, known: &mut Changes) -> Result<bool, StoreError> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let Some(changes) = shared.take_over(known).await? else { return Ok(false) };
        let base = lock(&self.base).clone();
        self.apply(known, self.thresholds(&base, &changes), changes);
        Ok(true)
    }

    /// Tells whether a change may not be forgotten: what the flags have must stay removed.
    fn must_know(&self, target: &str, entry: &str) -> bool {
        let is_of_flags = |target: Target| lock(&self.base).get(&target).is_ok();
        entry != Entry::Removed.to_string() || target.parse().is_ok_and(is_of_flags)
    }

    fn apply(&self, known: &mut Changes, thresholds: Thresholds, changes: Changes) {
        self.levels.configure(thresholds);
        self.version.store(changes.version, Ordering::Relaxed);
        *known = changes;
    }

    /// Returns thresholds with these changes. An entry that can't be read changes nothing.
    fn thresholds(&self, base: &Thresholds, changes: &Changes) -> Thresholds {
        let (mut thresholds, present) = (base.clone(), self.levels.configured());
        for (field, Versioned { text, .. }) in &changes.entries {
            let Ok(target) = field.parse::<Target>() else {
                tracing::warn!(?field, "a policy in Redis is for an unknown level");
                continue;
            };
            match text.parse() {
                Ok(entry) if thresholds.set(&target, &entry).is_ok() => {}
                Ok(_) | Err(_) => {
                    tracing::warn!(
                        ?field,
                        ?text,
                        "a policy in Redis can't be read: the old one stays"
                    );
                    thresholds.set_as_in(&present, &target);
                }
            }
        }
        thresholds
    }
}
