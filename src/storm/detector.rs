//! [`StormDetector`]: records every message, and tells when a group has too many.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::alerts::Alerts;
use super::reading::{Profile, ProfileError, Reading, StormEvent};
use super::rule::{StormRule, StormRuleError};
use super::store::{StormCheck, StormOutcome, StormStore};
use super::watch::{Look, Watch};
use crate::error::StoreError;
use crate::key::Key;
use crate::time::micros;

/// How many steps of a profile are counted at once.
const MOST_STEPS: u64 = 1_000;

/// Records every message of every group, refuses none, and tells when a group has too many; see
/// [the module](super).
///
/// A cheap handle: clones share all.
#[derive(Clone)]
pub struct StormDetector(Arc<Shared>);

/// What the handles and the task that takes looks share.
pub(super) struct Shared {
    rule: Arc<StormRule>,
    store: Arc<dyn StormStore>,
    alerts: Option<Alerts>,
    watch: Mutex<Watch>,
    /// Tells the task that there is something to do.
    pub(super) changed: Arc<Notify>,
    /// Tells that a look was taken.
    pub(super) settled: Notify,
}

impl StormDetector {
    /// Creates a detector of storms by a rule, or by a threshold and what goes with it by default.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that says what is wrong with the rule.
    pub fn new(rule: impl Into<StormRule>, store: impl StormStore) -> Result<Self, StormRuleError> {
        let rule = rule.into();
        rule.validate()?;
        Ok(Self(Arc::new(Shared::new(Arc::new(rule), Arc::new(store), None))))
    }

    /// Sets what is told of each start and each end of a storm that is decided here. Defaults to
    /// nothing.
    ///
    /// It runs on a thread of its own, one event after another, and may block: nobody who records a
    /// message waits for it. Up to 1,024 events wait for it. **If as many wait, the event that comes is
    /// shed**, and counted in [`StormDetector::shed`]. A panic in it is caught and counted in
    /// [`StormDetector::panicked`].
    ///
    /// The handle that is returned has nothing in common with others but the store.
    #[must_use]
    pub fn on_event(self, hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let (rule, store) = (self.0.rule.clone(), self.0.store.clone());
        Self(Arc::new(Shared::new(rule, store, Some(Alerts::new(hook)))))
    }

    /// Returns the rule.
    #[must_use]
    pub fn rule(&self) -> &StormRule {
        &self.0.rule
    }

    /// Records a message of a group, and says how the group stands. One call of the store.
    ///
    /// The identity is the message's own, the same whenever it is delivered again: while it is in the
    /// window it counts once. It is any bytes; more than 128 are hashed.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer in time. The message may have been recorded. To
    /// record it again is safe; to go on without is what most do, for the message itself is not the
    /// detector's to refuse.
    pub async fn record(
        &self,
        group: impl Into<Key>,
        message: impl Into<Key>,
    ) -> Result<Reading, StoreError> {
        self.0.ask(group.into(), Some(message.into())).await
    }

    /// Says how a group stands, and records nothing.
    ///
    /// A storm that has ended since anybody looked ends with this call.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer in time.
    pub async fn look(&self, group: impl Into<Key>) -> Result<Reading, StoreError> {
        self.0.ask(group.into(), None).await
    }

    /// Counts the messages of a group in each step of the window, for a graph. One call of the store.
    ///
    /// # Errors
    ///
    /// A [`ProfileError`] if the window has more than 1,000 steps, the step is no whole number of
    /// microseconds' length, or the store could not answer.
    pub async fn profile(
        &self,
        group: impl Into<Key>,
        step: Duration,
    ) -> Result<Profile, ProfileError> {
        let rule = &self.0.rule;
        let step_us = micros(step);
        if step_us == 0 {
            return Err(ProfileError::ZeroStep);
        }
        let steps = rule.window_us().div_ceil(step_us);
        if steps > MOST_STEPS {
            return Err(ProfileError::TooManySteps { steps, most: MOST_STEPS });
        }
        let step = Duration::from_micros(step_us);
        let counts = self.0.store.profile(rule, &group.into(), step).await;
        let counts = counts.inspect_err(StoreError::report)?;
        Ok(Profile { counts, step, cap: rule.cap_per_group() })
    }

    /// Waits until the hook has been told of everything that was decided before.
    pub async fn flush(&self) {
        if let Some(alerts) = &self.0.alerts {
            alerts.flush().await;
        }
    }

    /// Waits until no storm that this process knows of goes on, and all client whose answer was lost
    /// have been asked about.
    pub async fn settled(&self) {
        loop {
            let looked = self.0.settled.notified();
            if self.0.watch().is_idle() {
                return;
            }
            looked.await;
        }
    }

    /// Returns how many groups this process looks at because of a storm that it knows of.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.0.watch().storms()
    }

    /// Returns how many events the hook was not told of, for too many waited.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, Alerts::shed)
    }

    /// Returns how many times the hook has panicked.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, Alerts::panicked)
    }
}

impl Shared {
    fn new(rule: Arc<StormRule>, store: Arc<dyn StormStore>, alerts: Option<Alerts>) -> Self {
        let (watch, changed, settled) = (Mutex::default(), Arc::default(), Notify::new());
        Self { rule, store, alerts, watch, changed, settled }
    }

    pub(super) fn watch(&self) -> MutexGuard<'_, Watch> {
        // No code under the lock leaves it half changed, so a poisoned one is still whole.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        self: &Arc<Self>,
        group: Key,
        message: Option<Key>,
    ) -> Result<Reading, StoreError> {
        let check = StormCheck::new(self.rule.clone(), group, message);
        let mut unanswered = Unanswered { shared: self, check: &check, is_so: true };
        let outcome = self.store.check(&check).await;
        unanswered.is_so = outcome.as_ref().is_err_and(StoreError::may_have_counted);
        drop(unanswered);
        match outcome {
            Ok(outcome) => Ok(self.note(&check.group, outcome)),
            Err(error) => {
                error.report();
                Err(error)
            }
        }
    }

    /// Takes a look.
    pub(super) async fn take(self: &Arc<Self>, look: Look) {
        let mut check = StormCheck::new(self.rule.clone(), look.group.clone(), None);
        check.call = look.call;
        match self.store.check(&check).await {
            Ok(outcome) => drop(self.note(&look.group, outcome)),
            Err(error) => {
                error.report();
                self.watch().again(look);
            }
        }
    }

    /// Tells what was decided, and remembers when to look at the group.
    fn note(self: &Arc<Self>, group: &Key, outcome: StormOutcome) -> Reading {
        let look_us = outcome.look_us;
        let reading = Reading::new(outcome, &self.rule, group);
        for event in reading.events() {
            event.report();
            if let Some(alerts) = &self.alerts {
                alerts.tell(event);
            }
        }
        let mut watch = self.watch();
        if look_us > 0 {
            let changed = watch.storm(group, Duration::from_micros(look_us));
            watch.start(self);
            drop(watch);
            if changed {
                self.changed.notify_one();
            }
        } else if watch.calm(group) {
            drop(watch);
            self.settled.notify_waiters();
        }
        reading
    }
}

/// A call under way. If it ends without an answer, it is asked about later: it may have started or
/// ended a storm, and nobody else is told.
struct Unanswered<'a> {
    shared: &'a Arc<Shared>,
    check: &'a StormCheck,
    is_so: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_so {
            let mut watch = self.shared.watch();
            watch.unanswered(&self.check.group, self.check.call);
            watch.start(self.shared);
            drop(watch);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl fmt::Debug for StormDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StormDetector")
            .field("rule", &self.0.rule)
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}
