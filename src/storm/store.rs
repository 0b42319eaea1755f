//! [`StormStore`]: where the messages of groups, and their storms, are kept.
//!
//! Applications hand a [`MemoryStore`](crate::MemoryStore) or a `RedisStore` to a
//! [`StormDetector`](crate::StormDetector); only who writes a store needs this.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::rule::StormRule;
use crate::key::Key;
use crate::store::StoreFuture;

/// Keeps the messages of groups for as long as they count, and decides when storms start and end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of storms",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait StormStore: Send + Sync + 'static {
    /// Records a message, or only looks, and decides whether a storm starts or ends, as one atomic
    /// step.
    ///
    /// A message that is recorded already is not recorded again. What a call has decided it is told
    /// again if it is repeated, and nobody else is.
    fn check(&self, check: &StormCheck) -> StoreFuture<StormOutcome>;

    /// Counts the messages of a group in each step of the window, the oldest first.
    ///
    /// The last step ends now; the first is shorter if the window is no whole number of steps.
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

/// A message to be recorded, or a look at a group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StormCheck {
    /// The identity of the call, the same if it is repeated because its answer was lost.
    pub call: Uuid,
    /// When storms start and end.
    pub rule: Arc<StormRule>,
    /// Whose message it is, or who is looked at.
    pub group: Key,
    /// The message's own identity. None to look.
    pub message: Option<Key>,
}

impl StormCheck {
    /// Creates the check of a message, or a look if there is none.
    #[must_use]
    pub fn new(rule: Arc<StormRule>, group: Key, message: Option<Key>) -> Self {
        Self { call: Uuid::new_v4(), rule, group, message }
    }
}

/// How a group stands after a [`StormCheck`], and what that has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StormOutcome {
    /// When, on the store's clock. For people to read.
    pub at: SystemTime,
    /// How many messages the window holds, at most the rule's cap.
    pub count: u32,
    /// Whether the message was recorded already.
    pub is_repeated: bool,
    /// After how long a storm could start or end if no message comes. None if none could.
    pub next_look: Option<Duration>,
    /// How long the storm that goes on has lasted, and the highest count in it.
    pub storm: Option<(Duration, u32)>,
    /// The storm that this call has started.
    pub started: Option<Started>,
    /// The storm that this call has ended.
    pub ended: Option<Ended>,
}

impl StormOutcome {
    /// Creates an outcome with a count and no storm.
    #[must_use]
    pub const fn new(at: SystemTime, count: u32, is_repeated: bool) -> Self {
        Self { at, count, is_repeated, next_look: None, storm: None, started: None, ended: None }
    }
}

/// The start of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// How long ago it was.
    pub ago: Duration,
    /// How many messages the window held then.
    pub count: u32,
}

/// The end of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How long ago it was: the count fell then, which this call has noticed.
    pub ago: Duration,
    /// How long the storm lasted.
    pub lasted: Duration,
    /// The highest count in it.
    pub peak: u32,
}
