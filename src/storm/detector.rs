//! [`StormDetector`]: records every message, and reports when a group has too many.

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
use crate::time::micros;

/// How many steps of a profile are counted at once.
const MOST_STEPS: u64 = 1_000;

/// Records every message of every group, refuses none, and tells when a group has too many; see
/// [the module](super).
///
/// A cheap handle: clones share all.
#[derive(Clone)]
pub struct StormDetector(Arc<Shared>);

impl StormDetector {
    /// Creates a detector of storms by a rule, or by a threshold and the defaults for the rest.
    ///
    /// # Panics
    ///
    /// Where [`StormDetector::try_new`] returns an error.
    #[must_use]
    #[track_caller]
    pub fn new(rule: impl Into<StormRule>, store: impl StormStore) -> Self {
        match Self::try_new(rule, store) {
            Ok(detector) => detector,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a detector of storms, or says what is wrong with the rule.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the part.
    pub fn try_new(
        rule: impl Into<StormRule>,
        store: impl StormStore,
    ) -> Result<Self, StormRuleError> {
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
        self.0.send(group.into(), Some(message.into())).await
    }

    /// Says how a group stands, and records nothing.
    ///
    /// A storm that has ended since anybody looked ends with this call.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer in time.
    pub async fn look(&self, group: impl Into<Key>) -> Result<Reading, StoreError> {
        self.0.send(group.into(), None).await
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

impl fmt::Debug for StormDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StormDetector")
            .field("rule", &self.0.rule)
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}
