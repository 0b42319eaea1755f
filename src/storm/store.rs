//! [`StormStore`]: stores the messages of groups, and their storms.
//!
//! Applications give a [`MemoryStore`](crate::MemoryStore) or a `RedisStore` to a
//! [`StormDetector`](crate::storm::StormDetector). Only authors of other stores need this module.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::rule::StormRule;
use crate::key::Key;
use crate::store::StoreFuture;

/// A store that keeps the messages of groups and decides when storms start and end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of storms",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait StormStore: Send + Sync + 'static {
    /// Records the message, if there is one, and decides whether a storm starts or ends. All of it is
    /// one atomic step.
    ///
    /// A message that is already recorded is not recorded again. If a call with the same id is
    /// repeated, its outcome holds the same start, end and reminder again. The outcome of another call
    /// does not.
    fn check(&self, check: &StormCheck) -> StoreFuture<StormOutcome>;

    /// Counts the messages of a group in each step of the window, the oldest first.
    ///
    /// The last step ends now. The first is shorter if the window is not a whole number of steps.
    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>>;
}

impl<S: StormStore + ?Sized> StormStore for Arc<S> {
    fn check(&self, check: &StormCheck) -> StoreFuture<StormOutcome> {
        (**self).check(check)
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        (**self).profile(rule, group, step)
    }
}

/// A check of a group, with the message to record if there is one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StormCheck {
    /// The id of the call. It stays the same if the call is repeated because its reply was lost.
    pub call: Uuid,
    /// The rule for the start and end of storms.
    pub rule: Arc<StormRule>,
    /// The group of the message, or the group to check.
    pub group: Key,
    /// The id of the message. `None` records nothing.
    pub message: Option<Key>,
    /// How often a storm that continues is reported, counted from its start. `None` for never.
    pub remind_every: Option<Duration>,
}

impl StormCheck {
    /// Creates a check with a new call id, without reminders.
    #[must_use]
    pub fn new(rule: Arc<StormRule>, group: Key, message: Option<Key>) -> Self {
        Self { call: Uuid::new_v4(), rule, group, message, remind_every: None }
    }
}

/// The outcome of a [`StormCheck`]: the state of the group, and the events that the check caused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StormOutcome {
    /// The time of the check, by the store's clock. For display only.
    pub at: SystemTime,
    /// How many messages are in the window, at most the rule's cap.
    pub count: u32,
    /// Whether the message was already recorded.
    pub is_repeated: bool,
    /// When to check the group again: after this time a storm could start or end without further
    /// messages, or a reminder is due. `None` if none of these can happen.
    pub recheck_after: Option<Duration>,
    /// How long the current storm has lasted, and its highest count.
    pub storm: Option<(Duration, u32)>,
    /// The start of a storm, if this call caused it.
    pub started: Option<Started>,
    /// The end of a storm, if this call caused it.
    pub ended: Option<Ended>,
    /// The reminder of a storm that continues, if it is for this call to report.
    pub ongoing: Option<Ongoing>,
}

impl StormOutcome {
    /// Creates an outcome with a count and no storm.
    #[must_use]
    pub const fn new(at: SystemTime, count: u32, is_repeated: bool) -> Self {
        Self {
            at,
            count,
            is_repeated,
            recheck_after: None,
            storm: None,
            started: None,
            ended: None,
            ongoing: None,
        }
    }
}

/// The start of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// How long ago the storm started.
    pub ago: Duration,
    /// How many messages were in the window then.
    pub count: u32,
}

/// The end of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How long ago the count fell. This call has detected it.
    pub ago: Duration,
    /// How long the storm lasted.
    pub lasted: Duration,
    /// The highest count of the storm.
    pub peak: u32,
}

/// A reminder of a storm that continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ongoing {
    /// How long ago the reminder was due.
    pub ago: Duration,
    /// How long the storm had lasted then, a multiple of [`StormCheck::remind_every`].
    pub lasted: Duration,
    /// How many messages were in the window when the reminder was decided.
    pub count: u32,
    /// The highest count until then.
    pub peak: u32,
}
