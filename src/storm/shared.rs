//! [`Shared`]: what the handles of a detector and its task share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::alerts::Alerts;
use super::reading::Reading;
use super::rule::StormRule;
use super::store::{StormCheck, StormOutcome, StormStore};
use super::watch::{Look, Next, Watch};
use crate::error::StoreError;
use crate::key::Key;

/// What the handles and the task that takes looks share.
pub(super) struct Shared {
    pub(super) rule: Arc<StormRule>,
    pub(super) store: Arc<dyn StormStore>,
    pub(super) alerts: Option<Alerts>,
    watch: Mutex<Watch>,
    /// Tells the task that there is something to do.
    changed: Arc<Notify>,
    /// Tells that a look was taken.
    pub(super) settled: Notify,
}

impl Shared {
    pub(super) fn new(
        rule: Arc<StormRule>,
        store: Arc<dyn StormStore>,
        alerts: Option<Alerts>,
    ) -> Self {
        let (watch, changed, settled) = (Mutex::default(), Arc::default(), Notify::new());
        Self { rule, store, alerts, watch, changed, settled }
    }

    pub(super) fn watch(&self) -> MutexGuard<'_, Watch> {
        // No code under the lock leaves it half changed, so a poisoned one is still whole.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn send(
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
    async fn take(self: &Arc<Self>, look: Look) {
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
        let next_look = outcome.next_look;
        let reading = Reading::new(outcome, &self.rule, group);
        for event in reading.events() {
            event.report();
            if let Some(alerts) = &self.alerts {
                alerts.tell(event);
            }
        }
        let mut watch = self.watch();
        if let Some(after) = next_look {
            let changed = watch.storm(group, after);
            self.start(&mut watch);
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

    /// Starts the task that takes looks, if there is none. Without a runtime none are taken.
    fn start(self: &Arc<Self>, watch: &mut Watch) {
        if watch.is_empty() || watch.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            // The look that another runtime took with it is not coming back.
            watch.busy = false;
            let (weak, changed) = (Arc::downgrade(self), self.changed.clone());
            watch.task = Some(runtime.spawn(take_looks(weak, changed)));
        }
    }
}

/// Takes looks until the last handle of the detector is gone.
async fn take_looks(shared: Weak<Shared>, changed: Arc<Notify>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let next = strong.watch().next();
        match next {
            Next::Look(look) => {
                strong.take(look).await;
                strong.watch().busy = false;
                strong.settled.notify_waiters();
            }
            Next::At(due) => {
                drop(strong);
                let _ = timeout_at(due, changed.notified()).await;
            }
            Next::Nothing => {
                drop(strong);
                changed.notified().await;
            }
        }
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
            self.shared.start(&mut watch);
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
