//! [`StormDetector`]: records every message and reports when a group has too many.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::alerts::Alerts;
use super::reading::{Profile, ProfileError, Reading, StormEvent};
use super::rule::{StormRule, StormRuleError};
use super::shared::Shared;
use super::store::StormStore;
use crate::error::StoreError;
use crate::key::Key;
use crate::quota::LONGEST_WINDOW_US;
use crate::time::micros;

/// The highest number of steps in a profile.
const MAX_STEPS: u64 = 1_000;
/// Storms are not reported again more often than this.
const SHORTEST_REMINDER: Duration = Duration::from_secs(1);

/// Detects message storms: records every message of every group, denies none, and reports when a group
/// has too many. See [the module](super).
///
/// Cloning is cheap. Clones share everything.
#[derive(Clone)]
pub struct StormDetector(Arc<Shared>);

impl StormDetector {
    /// Creates a detector from a rule, or from a threshold with defaults for the rest.
    ///
    /// # Panics
    ///
    /// If [`StormDetector::try_new`] returns an error.
    #[must_use]
    #[track_caller]
    pub fn new(rule: impl Into<StormRule>, store: impl StormStore) -> Self {
        match Self::try_new(rule, store) {
            Ok(detector) => detector,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a detector, or returns an error if the rule is invalid.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part.
    pub fn try_new(
        rule: impl Into<StormRule>,
        store: impl StormStore,
    ) -> Result<Self, StormRuleError> {
        let rule = rule.into();
        rule.validate()?;
        Ok(Self(Arc::new(Shared::new(Arc::new(rule), Arc::new(store), None, None))))
    }

    /// Sets a hook to call at each start, each end and each reminder of a storm that a call of this
    /// detector caused. Defaults to none.
    ///
    /// The hook runs on a thread of its own, for one event at a time. It may block: callers of
    /// [`StormDetector::record`] do not wait for it. Up to 100,000 events wait for the hook. **A further
    /// event is dropped**, and counted in [`StormDetector::shed`]. A panic of the hook is caught and
    /// counted in [`StormDetector::panicked`].
    ///
    /// The returned detector shares only the rule and the store with earlier clones.
    #[must_use]
    pub fn on_event(self, hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let alerts = Some(Arc::new(Alerts::new(hook)));
        self.with(alerts, self.0.remind_every)
    }

    /// Sets how often a storm that continues is reported, by a [`StormEvent::Ongoing`]. Defaults to
    /// never.
    ///
    /// One process of the fleet reports each reminder. All processes should set the same time.
    ///
    /// The returned detector shares only the rule, the store and the hook with earlier clones.
    ///
    /// # Panics
    ///
    /// If [`StormDetector::try_remind_every`] returns an error.
    #[must_use]
    #[track_caller]
    pub fn remind_every(self, time: Duration) -> Self {
        match self.try_remind_every(time) {
            Ok(detector) => detector,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sets the time between reminders as [`StormDetector::remind_every`] does, or returns an error.
    ///
    /// # Errors
    ///
    /// [`StormRuleError::Reminder`] if the time is shorter than a second or longer than a hundred years.
    pub fn try_remind_every(self, time: Duration) -> Result<Self, StormRuleError> {
        if !(SHORTEST_REMINDER..=Duration::from_micros(LONGEST_WINDOW_US)).contains(&time) {
            return Err(StormRuleError::Reminder);
        }
        Ok(self.with(self.0.alerts.clone(), Some(time)))
    }

    fn with(&self, alerts: Option<Arc<Alerts>>, remind_every: Option<Duration>) -> Self {
        let (rule, store) = (self.0.rule.clone(), self.0.store.clone());
        Self(Arc::new(Shared::new(rule, store, alerts, remind_every)))
    }

    /// Returns the rule.
    #[must_use]
    pub fn rule(&self) -> &StormRule {
        &self.0.rule
    }

    /// Records a message and returns the state of its group. Takes one call of the store.
    ///
    /// `message_id` is the same each time the message is delivered. While the message is in the
    /// window, it counts once. An id is any bytes; an id of more than 128 bytes is hashed.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply in time. The message may have been recorded. It is
    /// safe to record it again. Most applications ignore the error and deliver the message.
    pub async fn record(
        &self,
        group: impl Into<Key>,
        message_id: impl Into<Key>,
    ) -> Result<Reading, StoreError> {
        self.0.send(group.into(), Some(message_id.into())).await
    }

    /// Returns the state of a group and records nothing.
    ///
    /// If the storm of the group is over and no call has detected that yet, this call ends it.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply in time.
    pub async fn peek(&self, group: impl Into<Key>) -> Result<Reading, StoreError> {
        self.0.send(group.into(), None).await
    }

    /// Counts the messages of a group in each step of the window, for a graph. Takes one call of the
    /// store.
    ///
    /// The length of a step is rounded down to microseconds.
    ///
    /// # Errors
    ///
    /// A [`ProfileError`] if the window has more than 1,000 steps, the step is shorter than a
    /// microsecond, or the store did not reply.
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
        if steps > MAX_STEPS {
            return Err(ProfileError::TooManySteps { steps, most: MAX_STEPS });
        }
        let step = Duration::from_micros(step_us);
        let counts = self.0.store.profile(rule, &group.into(), step).await;
        let counts = counts.inspect_err(StoreError::report)?;
        Ok(Profile { counts, step, cap: rule.cap_per_group() })
    }

    /// Waits until the hook has returned from all earlier events.
    pub async fn flush(&self) {
        if let Some(alerts) = &self.0.alerts {
            alerts.flush().await;
        }
    }

    /// Waits until this process watches no storm, and has repeated all calls whose reply was lost.
    pub async fn settled(&self) {
        loop {
            let recheck_done = self.0.recheck_done.notified();
            if self.0.rechecks().is_idle() {
                return;
            }
            recheck_done.await;
        }
    }

    /// Returns how many groups this process checks again later because of a storm.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.0.rechecks().storms()
    }

    /// Returns how many events were dropped because too many waited for the hook.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, |alerts| alerts.shed())
    }

    /// Returns how many times the hook has panicked.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, |alerts| alerts.panicked())
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
