//! [`Shared`]: the state that the handles of a detector share with its background task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::alerts::Alerts;
use super::reading::Reading;
use super::rechecks::{NextRecheck, Recheck, Rechecks};
use super::rule::StormRule;
use super::store::{StormCheck, StormOutcome, StormStore};
use crate::error::StoreError;
use crate::key::Key;

/// The state that the handles of a detector share with the task that runs rechecks.
///
/// Calls of [`Shared::send`] and the task run at the same time. The lock of `rechecks` is never held
/// during a call of the store. These interleavings are possible:
///
/// - Two calls about a group, in this process or others: the store runs them one after the other, and
///   one of them gets the event.
/// - Their outcomes are reported here in the other order. The older outcome may schedule a recheck of
///   a storm that is over; the recheck finds no storm. Or it may cancel the recheck of a storm that has
///   just started; then the next message of the group schedules it again or ends the storm, and a
///   recheck by another process ends it too.
/// - A call ends without a reply, or its caller drops it: [`LostReplyGuard`] schedules a recheck with
///   the id of the call, which gets the events that the call caused.
/// - A recheck is scheduled between [`Rechecks::next`] and the wait of the task: `changed` keeps the
///   permit of `notify_one`, so the task does not miss it.
/// - The last handle is dropped while the task waits: the task holds only a weak reference, and the
///   drop of `Shared` wakes it.
/// - The runtime of the task ends: its task is finished, and the next call starts another.
pub(super) struct Shared {
    pub(super) rule: Arc<StormRule>,
    pub(super) store: Arc<dyn StormStore>,
    pub(super) alerts: Option<Arc<Alerts>>,
    pub(super) remind_every: Option<Duration>,
    rechecks: Mutex<Rechecks>,
    /// Wakes the task if the schedule has changed.
    changed: Arc<Notify>,
    /// Notifies that a recheck was run or cancelled.
    pub(super) recheck_done: Notify,
}

impl Shared {
    pub(super) fn new(
        rule: Arc<StormRule>,
        store: Arc<dyn StormStore>,
        alerts: Option<Arc<Alerts>>,
        remind_every: Option<Duration>,
    ) -> Self {
        let (rechecks, changed, recheck_done) = (Mutex::default(), Arc::default(), Notify::new());
        Self { rule, store, alerts, remind_every, rechecks, changed, recheck_done }
    }

    pub(super) fn rechecks(&self) -> MutexGuard<'_, Rechecks> {
        // No code under the lock panics halfway through a change, so a poisoned value is consistent.
        self.rechecks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a message, or only checks the group if there is none, and reports the outcome.
    pub(super) async fn send(
        self: &Arc<Self>,
        group: Key,
        message: Option<Key>,
    ) -> Result<Reading, StoreError> {
        let mut check = StormCheck::new(self.rule.clone(), group, message);
        check.remind_every = self.remind_every;
        let mut guard = LostReplyGuard { shared: self, check: &check, is_lost: true };
        let outcome = self.store.check(&check).await;
        guard.is_lost = outcome.as_ref().is_err_and(StoreError::may_have_counted);
        drop(guard);
        Ok(self.report(&check.group, outcome.inspect_err(StoreError::report)?))
    }

    async fn run(self: &Arc<Self>, recheck: Recheck) {
        let mut check = StormCheck::new(self.rule.clone(), recheck.group.clone(), None);
        check.call = recheck.call;
        check.remind_every = self.remind_every;
        match self.store.check(&check).await {
            Ok(outcome) => drop(self.report(&recheck.group, outcome)),
            Err(error) => {
                error.report();
                self.rechecks().retry(recheck);
            }
        }
    }

    /// Delivers the events of an outcome, and schedules or cancels the group's recheck.
    fn report(self: &Arc<Self>, group: &Key, outcome: StormOutcome) -> Reading {
        let recheck_after = outcome.recheck_after;
        let reading = Reading::new(outcome, &self.rule, group);
        for event in reading.events() {
            event.report();
            if let Some(alerts) = &self.alerts {
                alerts.send(event);
            }
        }
        let mut rechecks = self.rechecks();
        if let Some(after) = recheck_after {
            let has_changed = rechecks.schedule(group, after);
            self.start(&mut rechecks);
            drop(rechecks);
            if has_changed {
                self.changed.notify_one();
            }
        } else if rechecks.cancel(group) {
            drop(rechecks);
            self.recheck_done.notify_waiters();
        }
        reading
    }

    /// Starts the task if rechecks are scheduled and it is not running. Does nothing without a runtime.
    fn start(self: &Arc<Self>, rechecks: &mut Rechecks) {
        if rechecks.is_empty() || rechecks.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            // A recheck that was running when its runtime ended never finishes.
            rechecks.is_running = false;
            let (weak, changed) = (Arc::downgrade(self), self.changed.clone());
            rechecks.task = Some(runtime.spawn(run_rechecks(weak, changed)));
        }
    }
}

/// Runs rechecks until the last handle of the detector is dropped.
async fn run_rechecks(shared: Weak<Shared>, changed: Arc<Notify>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let next = shared.rechecks().next();
        match next {
            NextRecheck::Run(recheck) => {
                shared.run(recheck).await;
                shared.rechecks().is_running = false;
                shared.recheck_done.notify_waiters();
            }
            NextRecheck::WaitUntil(due) => {
                drop(shared);
                let _ = timeout_at(due, changed.notified()).await;
            }
            NextRecheck::None => {
                drop(shared);
                changed.notified().await;
            }
        }
    }
}

/// Schedules a recheck if a call ends without a reply: the call may have started or ended a storm, and
/// no other call gets that event.
struct LostReplyGuard<'a> {
    shared: &'a Arc<Shared>,
    check: &'a StormCheck,
    is_lost: bool,
}

impl Drop for LostReplyGuard<'_> {
    fn drop(&mut self) {
        if self.is_lost {
            let mut rechecks = self.shared.rechecks();
            rechecks.schedule_lost(&self.check.group, self.check.call);
            self.shared.start(&mut rechecks);
            drop(rechecks);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}
