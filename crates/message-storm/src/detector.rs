//! [`StormDetector`]: records every message and reports when a group has too many.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tower_sliding_window::{Key, RedisStore, StoreError};
use uuid::Uuid;

use crate::alerts::Alerts;
use crate::event::{Outcome, Profile, ProfileError, Reading, StormEvent};
use crate::in_process::InProcess;
use crate::on_redis::OnRedis;
use crate::rule::{LONGEST, StormRule, StormRuleError, micros};

/// The highest number of steps in a profile.
const MAX_STEPS: u64 = 1_000;
/// Storms are not reported again more often than this.
const SHORTEST_REMINDER: Duration = Duration::from_secs(1);
/// How many tasks may wait. The end of a storm beyond that is found by the next message of its group.
const MOST_TASKS: usize = 100_000;
/// The pause before a call is repeated. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A group in a storm is checked again after at most this time.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

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
    /// # Panics
    ///
    /// If [`StormDetector::try_in_process`] returns an error.
    #[track_caller]
    pub fn in_process(rule: impl Into<StormRule>) -> Self {
        valid(Self::try_in_process(rule))
    }

    /// Creates a detector that keeps its groups in this process, or returns an error if the rule is
    /// invalid.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part.
    pub fn try_in_process(rule: impl Into<StormRule>) -> Result<Self, StormRuleError> {
        Self::try_with(rule.into(), Store::InProcess(InProcess::new(100_000, 1_000_000)))
    }

    /// Creates a detector that shares its groups with others through Redis, on the connection of a
    /// store, from a rule, or from a threshold with defaults for the rest.
    ///
    /// # Panics
    ///
    /// If [`StormDetector::try_on_redis`] returns an error.
    #[track_caller]
    pub fn on_redis(rule: impl Into<StormRule>, store: &RedisStore) -> Self {
        valid(Self::try_on_redis(rule, store))
    }

    /// Creates a detector that shares its groups through Redis, or returns an error if the rule is
    /// invalid.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part.
    pub fn try_on_redis(
        rule: impl Into<StormRule>,
        store: &RedisStore,
    ) -> Result<Self, StormRuleError> {
        Self::try_with(rule.into(), Store::OnRedis(OnRedis::new(store.commands(), str::to_owned)))
    }

    fn try_with(rule: StormRule, store: Store) -> Result<Self, StormRuleError> {
        rule.validate()?;
        Ok(Self::with(&Arc::new(rule), &Arc::new(store), None, 0))
    }

    fn with(
        rule: &Arc<StormRule>,
        store: &Arc<Store>,
        alerts: Option<Arc<Alerts>>,
        remind_us: u64,
    ) -> Self {
        let (rule, store, (calls, alive, watching)) = (rule.clone(), store.clone(), <_>::default());
        Self(Arc::new(Shared { rule, store, alerts, remind_us, calls, alive, watching }))
    }

    /// Sets how many groups and how many messages of all groups are kept in process. Defaults to 100,000
    /// groups and 1,000,000 messages. It changes nothing on Redis.
    ///
    /// A group takes up to 1 kB, and each of its messages 115 to 400 bytes, or 650 if its id is longer
    /// than 40 bytes. So the default is at most 500 MB, or 750 MB with long ids.
    ///
    /// If there is no room, groups that have expired are dropped, and so are messages that have left the
    /// window, at most ten times a second. Groups in use never are. A message that does not fit then is
    /// not counted, and the call returns [`StoreError::Full`]. Current storms end as usual.
    pub fn capacity(self, groups: usize, messages: usize) -> Self {
        if let Store::InProcess(store) = &*self.0.store {
            store.set_capacity(groups, messages);
        }
        self
    }

    /// Sets a hook to call at each start, each end and each reminder of a storm that a call of this
    /// detector caused. Defaults to none.
    ///
    /// The hook runs on a thread of its own, for one event at a time. It may block: callers of
    /// [`StormDetector::record`] do not wait for it. Up to 100,000 events wait for the hook. **A further
    /// event is dropped**, and counted in [`StormDetector::shed`]. A panic of the hook is caught and
    /// counted in [`StormDetector::panicked`].
    ///
    /// The returned detector shares only the rule and the groups with earlier clones.
    pub fn on_event(self, hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let alerts = Some(Arc::new(Alerts::new(hook)));
        Self::with(&self.0.rule, &self.0.store, alerts, self.0.remind_us)
    }

    /// Sets how often a storm that continues is reported, by a [`StormEvent::Ongoing`]. Defaults to
    /// never.
    ///
    /// One process of the fleet reports each reminder. All processes should set the same time.
    ///
    /// The returned detector shares only the rule, the groups and the hook with earlier clones.
    ///
    /// # Panics
    ///
    /// If [`StormDetector::try_remind_every`] returns an error.
    #[track_caller]
    pub fn remind_every(self, time: Duration) -> Self {
        valid(self.try_remind_every(time))
    }

    /// Sets the time between reminders as [`StormDetector::remind_every`] does, or returns an error.
    ///
    /// # Errors
    ///
    /// [`StormRuleError::Reminder`] if the time is shorter than a second or longer than a hundred years.
    pub fn try_remind_every(self, time: Duration) -> Result<Self, StormRuleError> {
        if !(SHORTEST_REMINDER..=LONGEST).contains(&time) {
            return Err(StormRuleError::Reminder);
        }
        Ok(Self::with(&self.0.rule, &self.0.store, self.0.alerts.clone(), micros(time)))
    }

    /// Returns the rule.
    pub fn rule(&self) -> &StormRule {
        &self.0.rule
    }

    /// Records a message and returns the state of its group. Takes one call of Redis.
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

    /// Counts the messages of a group in each step of the window, for a graph. Takes one call of Redis.
    ///
    /// The length of a step is rounded down to microseconds.
    ///
    /// # Errors
    ///
    /// A [`ProfileError`] if the window has more than 1,000 steps, the step is shorter than a
    /// microsecond, or Redis did not reply.
    pub async fn profile(
        &self,
        group: impl Into<Key>,
        step: Duration,
    ) -> Result<Profile, ProfileError> {
        let (rule, step_us) = (&self.0.rule, micros(step));
        if step_us == 0 {
            return Err(ProfileError::ZeroStep);
        }
        let steps = rule.window_us().div_ceil(step_us);
        if steps > MAX_STEPS {
            return Err(ProfileError::TooManySteps { steps, most: MAX_STEPS });
        }
        let counts = match &*self.0.store {
            Store::InProcess(store) => store.profile(rule, &group.into(), step_us),
            Store::OnRedis(store) => {
                store.profile(rule, &group.into(), step_us).await.inspect_err(report)?
            }
        };
        let step = Duration::from_micros(step_us);
        let is_saturated = counts.iter().sum::<u32>() >= rule.cap;
        Ok(Profile { counts, step, is_saturated })
    }

    /// Waits until the hook has returned from all earlier events.
    pub async fn flush(&self) {
        if let Some(alerts) = &self.0.alerts {
            alerts.flush().await;
        }
    }

    /// Waits until this process watches no storm, and has repeated all calls whose reply was lost.
    pub async fn settled(&self) {
        self.0.alive.closed().await;
    }

    /// Returns how many groups this process checks again later because of a storm.
    pub fn watched(&self) -> usize {
        self.0.watching().len()
    }

    /// Returns how many events were dropped because too many waited for the hook.
    pub fn shed(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, |alerts| alerts.shed.load(Ordering::Relaxed))
    }

    /// Returns how many times the hook has panicked.
    pub fn panicked(&self) -> u64 {
        self.0.alerts.as_ref().map_or(0, |alerts| alerts.panics.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for StormDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StormDetector").field("rule", &self.0.rule).finish_non_exhaustive()
    }
}

#[track_caller]
fn valid(detector: Result<StormDetector, StormRuleError>) -> StormDetector {
    match detector {
        Ok(detector) => detector,
        Err(error) => panic!("{error}"),
    }
}

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

/// A check of a group, with the message to record if there is one.
#[derive(Clone)]
pub(crate) struct Check {
    /// The id of the call. It stays the same if the call is repeated because its reply was lost.
    pub(crate) call: Uuid,
    /// A call of this detector with a higher number was begun later.
    pub(crate) number: u64,
    pub(crate) rule: Arc<StormRule>,
    pub(crate) group: Key,
    pub(crate) message: Option<Key>,
    /// The time between reminders of a storm, zero for none.
    pub(crate) remind_us: u64,
}

/// The state that the handles of a detector share with its tasks.
///
/// A group in a storm has a task that sleeps until something may have changed without a message, and
/// checks the group then. A call whose reply was lost has a task that repeats it with its id, because
/// nobody else gets its events. These interleavings are possible:
///
/// - Two calls about a group, in this process or others: the store runs them one after the other, and
///   one of them gets the event.
/// - Their outcomes come to [`Shared::report`] in the other order. If the older one has a storm that is
///   over, a task finds no storm and ends. If the older one has no storm yet, the task of the storm goes
///   on: only a call that was begun after a task ends it.
/// - A message finds the storm over: the task of the group is ended if it sleeps. A task that has begun
///   its call is not in `watching` any more and goes on until it is answered, because the event may be in
///   its reply. It leaves the table under the lock, so it is either ended or begins.
/// - A message finds the storm while the task of the group has begun its call: the group gets another
///   task. One of the two has the event.
/// - A storm ends and another starts while the task of the first sleeps: it wakes no later than at the
///   end of the first, and finds the second.
/// - The caller drops a call: [`LostCall`] has it repeated.
/// - The last handle is dropped: the tasks have weak references only. A task that sleeps ends with its
///   entry in `watching`, one that pauses before it repeats a call finds nothing, and one that calls
///   delivers its event first.
/// - The runtime ends, and the tasks with it: the next call of a group finds that, and starts another.
pub(crate) struct Shared {
    rule: Arc<StormRule>,
    pub(crate) store: Arc<Store>,
    alerts: Option<Arc<Alerts>>,
    /// Zero for never.
    remind_us: u64,
    calls: AtomicU64,
    /// Each task has a receiver.
    alive: watch::Sender<()>,
    /// The tasks that sleep, by their groups: the number of the call that each will make, and what ends it
    /// when it is dropped.
    watching: Mutex<HashMap<Key, (u64, oneshot::Sender<()>)>>,
}

impl Shared {
    fn watching(&self) -> MutexGuard<'_, HashMap<Key, (u64, oneshot::Sender<()>)>> {
        // No code under the lock panics halfway through a change, so a poisoned value is consistent.
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_of(&self, group: Key, message: Option<Key>) -> Check {
        let (call, number) = (Uuid::new_v4(), self.calls.fetch_add(1, Ordering::SeqCst));
        let (rule, remind_us) = (self.rule.clone(), self.remind_us);
        Check { call, number, rule, group, message, remind_us }
    }

    /// Records a message, or only checks the group if there is none, and reports the outcome.
    async fn call(self: &Arc<Self>, group: Key, id: Option<Key>) -> Result<Reading, StoreError> {
        let check = self.check_of(group, id);
        let mut lost = LostCall { shared: self, check: &check, is_lost: true };
        let outcome = self.store.check(&check).await;
        lost.is_lost = outcome.as_ref().is_err_and(StoreError::may_have_counted);
        drop(lost);
        Ok(self.report(&check, &outcome.inspect_err(report)?))
    }

    /// Delivers the events of an outcome, and has the group watched for as long as it may change.
    pub(crate) fn report(self: &Arc<Self>, check: &Check, outcome: &Outcome) -> Reading {
        let reading = Reading::new(outcome, &self.rule, &check.group);
        for event in &reading.events {
            report_event(event);
            if let Some(alerts) = &self.alerts {
                alerts.send(event);
            }
        }
        let mut watching = self.watching();
        let may_change = outcome.recheck_us > 0;
        if watching
            .get(&check.group)
            .is_some_and(|(number, end)| end.is_closed() || !may_change && check.number > *number)
        {
            watching.remove(&check.group);
        }
        if may_change && !watching.contains_key(&check.group) {
            let (shared, next) = (Arc::downgrade(self), self.check_of(check.group.clone(), None));
            let after = Duration::from_micros(outcome.recheck_us).min(LONGEST_WAIT);
            let (number, (end, ended)) = (next.number, oneshot::channel());
            self.spawn(watch(shared, next, after, ended));
            if !end.is_closed() {
                watching.insert(check.group.clone(), (number, end));
            }
        }
        reading
    }

    /// Spawns a task, unless there are too many, or no runtime.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.alive.receiver_count() < MOST_TASKS
            && let Ok(runtime) = Handle::try_current()
        {
            let alive = self.alive.subscribe();
            runtime.spawn(async move {
                task.await;
                drop(alive);
            });
        }
    }
}

/// Checks a group after some time, unless it is ended before.
async fn watch(shared: Weak<Shared>, check: Check, after: Duration, ended: oneshot::Receiver<()>) {
    let is_ended = timeout(after, ended).await.is_ok();
    let begins = |shared: Arc<Shared>| {
        let mut watching = shared.watching();
        let is_own = watching.get(&check.group).is_some_and(|(number, _)| *number == check.number);
        is_own && watching.remove(&check.group).is_some()
    };
    if !is_ended && shared.upgrade().is_some_and(begins) {
        check_until_answered(shared, check).await;
    }
}

/// Checks a group, and again with the same id until the store answers.
pub(crate) async fn check_until_answered(shared: Weak<Shared>, check: Check) {
    let mut pause = FIRST_PAUSE;
    while let Some(shared) = shared.upgrade() {
        match shared.store.check(&check).await {
            Ok(outcome) => return drop(shared.report(&check, &outcome)),
            Err(error) => report(&error),
        }
        drop(shared);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Has a call repeated that ends without a reply: it may have started or ended a storm, and no other
/// call gets that event.
struct LostCall<'a> {
    shared: &'a Arc<Shared>,
    check: &'a Check,
    is_lost: bool,
}

impl Drop for LostCall<'_> {
    fn drop(&mut self) {
        if self.is_lost {
            // Whether the message is recorded is for the caller to see to.
            let check = Check { message: None, ..self.check.clone() };
            let shared = Arc::downgrade(self.shared);
            self.shared.spawn(async move {
                sleep(FIRST_PAUSE).await;
                check_until_answered(shared, check).await;
            });
        }
    }
}

/// Reports that a call failed.
fn report(error: &StoreError) {
    metrics::counter!("sliding_window_store_errors_total", "kind" => error.kind()).increment(1);
    tracing::debug!(%error, "the store could not decide");
}

/// Reports the start or the end of a storm.
fn report_event(event: &StormEvent) {
    let (name, kind) = match event {
        StormEvent::Started { name, .. } => (name.clone(), "start"),
        StormEvent::Ended { name, .. } => (name.clone(), "end"),
        StormEvent::Ongoing { .. } => return,
    };
    // A group is printed as its length.
    tracing::info!(?event, "a storm has {kind}ed");
    metrics::counter!("sliding_window_storms_total", "name" => name, "event" => kind).increment(1);
}
