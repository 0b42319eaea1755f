//! [`DenyCache`]: repeats the denials of a store from memory.

mod denials;
mod hashed_log;
mod lookup;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::denials::{Denials, Invalidation};
#[cfg(feature = "redis")]
use self::lookup::Lookup;
#[cfg(feature = "redis")]
use super::underlying::{CheckResult, Underlying};
use super::{LogSnapshot, Restored, Store, StoreFuture};
use crate::window::{Check, Explanation, LogId, Outcome};

pub(super) const DEFAULT_CAPACITY: usize = 65_536;
/// Short, because a place can become free by more than time, also in other processes.
pub(super) const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);

/// Caches denials in this process, and repeats them without a call to the store.
///
/// After a denial, the log has no room before a certain instant. Until then, and for at most a
/// second, the same request is denied from memory. [`RedisStore`](super::RedisStore) has a cache
/// built in.
///
/// ## Behavior
///
/// - A denial is cached until the instant before which time alone makes no room, and for at most a
///   second: a reset, a cancelled request or a lifted ban in another process frees a place too, see
///   [`DenyCache::max_age`]. The instant is measured from before the check was sent, on the
///   monotonic clock, so the cache never denies a place that time has freed.
/// - A key that is denied again and again costs the store about one check a second, however many
///   requests it sends: one of them renews the denial before it expires.
/// - The wait of a cached denial is never too short for the logs that are cached: it counts from
///   when the outcome arrived. The exception is a log that policies with different limits share:
///   what another one admits meanwhile makes the wait longer. The next renewal has the new wait.
/// - A denial is dropped when its policy is replaced, and when the key is reset or a request of it
///   is admitted, settled, cancelled, restored or rolled back through a clone of this cache.
/// - For a request under several policies, each full log is cached by itself. A denial from memory
///   names these logs only, not one that has filled since. The others are
///   [not read](crate::store::LogOutcome::is_read).
/// - Requests of a cost other than 1 in a log always go to the store.
/// - Bounded: at its capacity the cache evicts the least used denial, which costs the store one
///   check.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryStore, Quota};
/// use tower_sliding_window::store::DenyCache;
///
/// let store = DenyCache::new(MemoryStore::new()).max_age(Duration::from_millis(200));
/// let limiter = Limiter::new(Quota::per_minute(5), store);
/// ```
#[derive(Clone)]
pub struct DenyCache<S> {
    store: S,
    denials: Arc<Denials>,
    max_age: Duration,
}

impl<S: Store> DenyCache<S> {
    /// Puts a cache for up to 65,536 denials in front of a store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::with(store, DEFAULT_CAPACITY, DEFAULT_MAX_AGE)
    }

    pub(super) fn with(store: S, capacity: usize, max_age: Duration) -> Self {
        Self { store, denials: Arc::new(Denials::new(capacity)), max_age }
    }

    /// Sets how many denials are cached. Defaults to 65,536.
    #[must_use]
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.denials = Arc::new(Denials::new(capacity));
        self
    }

    /// Sets how long a denial is cached at most. Defaults to one second.
    ///
    /// A longer age costs the store fewer checks. A reset, a cancellation or a lifted ban in
    /// another process goes unnoticed for up to that long. With zero nothing is cached.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }
}

#[cfg(feature = "redis")]
impl<S: Underlying> Underlying for DenyCache<S> {
    type Prepared = (Option<Lookup>, S::Prepared);

    fn prepare(&self, check: &Check, now: Instant) -> Result<Outcome, Self::Prepared> {
        let lookup = match self.denials.look_up(check, now, self.max_age) {
            Ok(outcome) => return Ok(outcome),
            Err(lookup) => lookup,
        };
        self.store.prepare(check, now).map_err(|prepared| (lookup, prepared))
    }

    async fn send(
        &self,
        check: &Check,
        (lookup, prepared): &Self::Prepared,
        now: Instant,
    ) -> CheckResult {
        let outcome = self.store.send(check, prepared, now).await?;
        self.denials.end(lookup.as_ref(), &check.logs, &outcome);
        Ok(outcome)
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let lookup = match self.denials.look_up(check, Instant::now(), self.max_age) {
            Ok(outcome) => return StoreFuture::ready(Ok(outcome)),
            Err(lookup) => lookup,
        };
        let (denials, logs) = (self.denials.clone(), check.logs.clone());
        self.store.admit(check).inspect(move |outcome| denials.end(lookup.as_ref(), &logs, outcome))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.store.peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        self.store.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let invalidation = Invalidation::new(&self.denials, &check.logs);
        self.store.settle(check, cost).inspect(move |_| drop(invalidation))
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        let invalidation = Invalidation::new(&self.denials, std::slice::from_ref(log));
        self.store.restore(log, snapshot).inspect(move |_| drop(invalidation))
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let invalidation = Invalidation::new(&self.denials, logs);
        self.store.reset(logs).inspect(move |()| drop(invalidation))
    }
}

impl<S: fmt::Debug> fmt::Debug for DenyCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenyCache")
            .field("store", &self.store)
            .field("denials", &self.denials.len())
            .field("max_age", &self.max_age)
            .finish()
    }
}
