//! [`StormDetector`]: records every message and reports when a group has too many.

use std::collections::HashSet;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tower_sliding_window::{Key, RedisStore, StoreError};

use crate::check::{Check, Outcome, Reading, Storm, StormEvent};
use crate::in_process::InProcess;
use crate::on_redis::OnRedis;
use crate::rule::{StormRule, StormRuleError};

/// How many groups are watched, and how many calls are under way or repeated. The end of a storm beyond
/// that is found by the next message of its group, and the event of a lost call is lost.
pub(crate) const MOST_TASKS: usize = if cfg!(test) { 1_000 } else { 100_000 };
/// The pause before a call is repeated. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How late a lost call may run.
const LATEST: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });

/// Detects message storms: records every message of every group, denies none, and reports when a group
/// has too many. See [the crate](crate).
///
/// Cloning is cheap. Clones share everything.
#[must_use]
#[derive(Clone)]
pub struct StormDetector(pub(crate) Arc<Shared>);

impl StormDetector {
    /// Creates a detector that keeps its groups in this process, from a rule, or from a threshold with
    /// defaults for the rest.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part of the rule.
    pub fn in_process(rule: impl Into<StormRule>) -> Result<Self, StormRuleError> {
        let rule = Arc::new(rule.into().validated()?);
        Ok(Self::with(&rule, &Arc::new(Store::InProcess(InProcess::new(rule.clone()))), None))
    }

    /// Creates a detector that shares its groups with others through Redis, on the connection of a
    /// store, from a rule, or from a threshold with defaults for the rest.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part of the rule.
    pub fn on_redis(
        rule: impl Into<StormRule>,
        store: &RedisStore,
    ) -> Result<Self, StormRuleError> {
        let rule = Arc::new(rule.into().validated()?);
        let store = OnRedis::new(rule.clone(), store.commands(), str::to_owned);
        Ok(Self::with(&rule, &Arc::new(Store::OnRedis(store)), None))
    }

    fn with(rule: &Arc<StormRule>, store: &Arc<Store>, hook: Option<Box<Hook>>) -> Self {
        let (rule, store) = (rule.clone(), store.clone());
        let (calling, watching, watched) = <_>::default();
        Self(Arc::new(Shared { rule, store, hook, calling, watching, watched }))
    }

    /// Sets how many messages of all groups are kept in process, where a group counts as two messages more.
    /// Defaults to 1,000,000. It changes nothing on Redis.
    ///
    /// A group takes up to 1 kB, and each of its messages 115 to 460 bytes, or 650 if its id is longer
    /// than 40 bytes. So the default is at most 500 MB, or 650 MB with long ids.
    ///
    /// If there is no room, groups that have expired are dropped, and so are messages that have left the
    /// window, at most ten times a second. Groups in use never are. A message that does not fit then is
    /// not counted, and the call returns [`StoreError::Full`]. Current storms end as usual.
    pub fn capacity(self, messages: usize) -> Self {
        if let Store::InProcess(store) = &*self.0.store {
            store.set_capacity(messages);
        }
        self
    }

    /// Sets a hook to call at each start and each end of a storm that a call of this detector has caused.
    /// Defaults to none.
    ///
    /// It runs inside [`StormDetector::record`], or on Redis in the task of the call, and in the tasks that find
    /// the end of a storm. So it must not block: hand what takes long to a queue of your own.
    ///
    /// The returned detector shares only the rule and the groups with earlier clones.
    pub fn on_event(self, hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        Self::with(&self.0.rule, &self.0.store, Some(Box::new(hook)))
    }

    /// Records a message and returns the state of its group. Takes one call of Redis.
    ///
    /// If the caller drops the future, the call goes on, and its events go to the hook alone.
    ///
    /// `message_id` is the same each time the message is delivered. While the message is in the
    /// window, it counts once. An id is any bytes; an id of more than 128 bytes is hashed.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if Redis did not reply in time, or if there is no room in this process. The
    /// message may have been recorded. It is safe to record it again. Most applications ignore the error
    /// and deliver the message.
    pub async fn record(
        &self,
        group: impl Into<Key>,
        message_id: impl Into<Key>,
    ) -> Result<Reading, StoreError> {
        self.0.call(group.into(), Some(message_id.into())).await
    }

    /// Returns the state of a group and records nothing.
    ///
    /// If the storm of the group is over and no call has detected that yet, this call ends it.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if Redis did not reply in time.
    pub async fn peek(&self, group: impl Into<Key>) -> Result<Reading, StoreError> {
        self.0.call(group.into(), None).await
    }

    /// Waits until no call is under way, all whose reply was lost are repeated, and this process watches
    /// no storm.
    pub async fn settled(&self) {
        // In this order, because a call may have a group watched.
        self.0.calling.closed().await;
        self.0.watching.closed().await;
    }

    /// Returns how many groups this process checks again later because of a storm.
    pub fn watched(&self) -> usize {
        self.0.watched().len()
    }
}

impl fmt::Debug for StormDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StormDetector").field("rule", &self.0.rule).finish_non_exhaustive()
    }
}

type Hook = dyn Fn(&StormEvent) + Send + Sync;

/// Where the messages and storms of groups are.
pub(crate) enum Store {
    InProcess(InProcess),
    OnRedis(OnRedis),
}

impl Store {
    pub(crate) async fn check(&self, check: &Check) -> Result<Outcome, StoreError> {
        match self {
            Self::InProcess(store) => store.check(check),
            Self::OnRedis(store) => store.check(check).await,
        }
    }
}

/// The state that the handles of a detector share with its tasks.
///
/// A group in a storm has a task that sleeps until something may have changed without a message, and
/// checks the group then. A call of Redis runs in a task, and one whose reply was lost has a task that
/// repeats it with its id, because nobody else gets its events. These interleavings are possible:
///
/// - Two calls about a group, in this process or others: the store runs them one after the other, and
///   one of them gets the event. If their outcomes come to [`Shared::report`] in the other order, a task
///   may find no storm, and ends.
/// - A message finds the storm while the task of the group calls: the task is not in `watched` any more,
///   so the group gets another one. One of the two has the event.
/// - A storm ends and another starts while the task of the first sleeps: it wakes no later than at the
///   end of the first, and finds the second.
/// - The caller drops a call: its task goes on, and reports what it finds.
/// - The last handle is dropped: the tasks that sleep have weak references only, hear of it and end. One
///   that calls delivers its event first.
/// - The runtime ends, and the tasks with it: each takes its group out of `watched`, and the next call of
///   the group starts another.
pub(crate) struct Shared {
    rule: Arc<StormRule>,
    pub(crate) store: Arc<Store>,
    hook: Option<Box<Hook>>,
    /// Each call of a message has a receiver, also while it is repeated later.
    calling: watch::Sender<()>,
    /// Each task that watches a group has a receiver.
    watching: watch::Sender<()>,
    /// The groups that have a task that sleeps.
    watched: Mutex<HashSet<Key>>,
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, HashSet<Key>> {
        // No code under the lock panics halfway through a change, so a poisoned value is consistent.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a message, or only checks the group if there is none, and reports the outcome.
    async fn call(self: &Arc<Self>, group: Key, id: Option<Key>) -> Result<Reading, StoreError> {
        let check = Check::new(group, id);
        if let Store::InProcess(store) = &*self.store {
            let outcome = store.check(&check).inspect_err(report_error)?;
            return Ok(self.report(&check.group, &outcome));
        }
        // In a task, because the caller may leave, and no other call gets the event.
        let (shared, calling) = (self.clone(), self.calling.subscribe());
        let call = tokio::spawn(async move {
            let reading = shared.call_redis(check).await;
            drop(calling);
            reading
        });
        call.await.unwrap_or_else(|error| {
            if let Ok(panic) = error.try_into_panic() {
                resume_unwind(panic);
            }
            let message = "the task of the call has ended".to_owned();
            Err(StoreError::Disconnected { message })
        })
    }

    /// Makes a call of Redis, has it repeated if its reply is lost, and reports the outcome.
    async fn call_redis(self: &Arc<Self>, check: Check) -> Result<Reading, StoreError> {
        let mut outcome = self.store.check(&check).await;
        if outcome.as_ref().is_err_and(StoreError::may_have_counted) {
            // The first error says that the call may have counted.
            outcome = self.store.check(&check).await.or(outcome);
            // Without an event here, the first attempt may still run and have one.
            if !outcome.as_ref().is_ok_and(Outcome::has_event) {
                // Whether the message is recorded is for the caller to see to.
                let check = Check { message: None, ..check.clone() };
                self.check_later(check, FIRST_PAUSE, None);
            }
        }
        let outcome = outcome.inspect_err(report_error)?;
        Ok(self.report(&check.group, &outcome))
    }

    /// Delivers the events of an outcome, and has the group watched for as long as it may change.
    fn report(self: &Arc<Self>, group: &Key, outcome: &Outcome) -> Reading {
        if outcome.recheck_us > 0 && self.watched().insert(group.clone()) {
            let watched = Watched { shared: Arc::downgrade(self), group: group.clone() };
            let after = Duration::from_micros(outcome.recheck_us);
            self.check_later(Check::new(group.clone(), None), after, Some(watched));
        }
        let &Outcome { count, storm, .. } = outcome;
        let events = outcome.events(group);
        for event in &events {
            let name = self.rule.name().to_owned();
            let kind = if matches!(event, StormEvent::Started { .. }) { "start" } else { "end" };
            metrics::counter!("sliding_window_storms_total", "name" => name, "event" => kind)
                .increment(1);
            // A group is printed as its length.
            tracing::info!(?event, "a storm has {kind}ed");
            if let Some(hook) = &self.hook {
                hook(event);
            }
        }
        let storm = storm.map(|(us, peak)| Storm { lasted: Duration::from_micros(us), peak });
        Reading { count, is_saturated: count >= self.rule.cap, storm, events }
    }

    /// Makes a check after a pause, and again with the same id until the store answers, in a task. A call that was lost,
    /// as is one that is not of a group that is watched, may still run: then once more when it no longer can, unless
    /// there is an event before. Does nothing if there are too many tasks, or no runtime.
    pub(crate) fn check_later(
        self: &Arc<Self>,
        check: Check,
        mut pause: Duration,
        mut watched: Option<Watched>,
    ) {
        let tasks = if watched.is_some() { &self.watching } else { &self.calling };
        if tasks.receiver_count() >= MOST_TASKS {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, mut alive) = (Arc::downgrade(self), tasks.subscribe());
        let (mut next_pause, mut is_lost) = (FIRST_PAUSE, watched.is_none());
        runtime.spawn(async move {
            loop {
                // Ends at once when the detector is dropped.
                let _ = timeout(pause, alive.changed()).await;
                let Some(shared) = shared.upgrade() else { return };
                // Before the call, because the group may change after it.
                drop(watched.take());
                match shared.store.check(&check).await {
                    Ok(outcome) => {
                        shared.report(&check.group, &outcome);
                        if outcome.has_event() || !is_lost {
                            return;
                        }
                        (pause, is_lost) = (LATEST, false);
                    }
                    Err(error) => {
                        report_error(&error);
                        is_lost |= error.may_have_counted();
                        pause = next_pause;
                        next_pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
        });
    }
}

/// A group that has a task that sleeps.
pub(crate) struct Watched {
    shared: Weak<Shared>,
    group: Key,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.watched().remove(&self.group);
        }
    }
}

fn report_error(error: &StoreError) {
    metrics::counter!("sliding_window_store_errors_total", "kind" => error.kind()).increment(1);
    tracing::debug!(%error, "the store could not decide");
}
