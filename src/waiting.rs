//! [`Waiting`]: the callers that wait for room in the same logs.

mod error;
mod queue;
#[cfg(all(test, feature = "memory"))]
mod tests;
mod until_admitted;

use std::array;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use smallvec::SmallVec;

pub use self::error::WaitError;
use self::queue::{Queue, Turn, Waiter};
pub(crate) use self::until_admitted::{Bounds, Ended, until_admitted};
use crate::window::{Check, Denied, LogId};

pub(crate) const DEFAULT_MAX_WAITERS: usize = 10_000;

/// How many locks the queues share.
const SHARDS: usize = 16;

/// The logs of a caller. Those that wait for room in the same logs have one queue.
type Logs = SmallVec<[LogId; 1]>;

type Shard = HashMap<Logs, Queue, RandomState>;

// # Interleavings
//
// A queue and the denials of its waiters change under the lock of its shard only.
//
// - Two callers find no queue, and both are denied. They join in the order of their tickets, which they
//   drew before their checks, whatever the order of the denials. If the earlier one joins later, it
//   becomes the first waiter; the other one notices when its sleep ends.
// - A waiter is woken while it does not wait. `Notify` keeps the wake-up, and it looks at its turn once
//   more.
// - A waiter is woken to be the first one, and is dropped. Its place is dropped with it, which wakes the
//   next one.
// - The last waiter leaves after a caller has found the queue, and before that caller joins. It finds no
//   denial in the new queue, and checks at once.
// - `count` is raised before a waiter is in its queue and lowered after it has left. A caller that reads
//   0 has arrived at the same time as a waiter that joins, so neither is earlier.
#[derive(Debug)]
pub(crate) struct Waiting {
    count: AtomicUsize,
    tickets: AtomicU64,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

impl Waiting {
    pub(crate) fn new() -> Self {
        let hasher = RandomState::new();
        let shards = array::from_fn(|_| Mutex::new(Shard::with_hasher(hasher.clone())));
        Self { count: AtomicUsize::new(0), tickets: AtomicU64::new(0), hasher, shards }
    }

    /// Returns the number of a caller in the order of arrival.
    fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether a caller waits for room in these logs.
    fn has(&self, logs: &Logs) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock(logs).contains_key(logs)
    }

    /// Returns the denial of a check behind those that wait for room in the same logs, if the first of them
    /// was denied.
    pub(crate) fn denial_behind(&self, check: &Check) -> Option<Denied> {
        self.lock(&check.logs).get(&check.logs)?.behind_all(check.cost)
    }

    /// Makes a caller wait, with the denial of its first check if it was not behind others.
    fn join(
        &self,
        logs: Logs,
        ticket: u64,
        waiter: Waiter,
        first: Option<Denied>,
        most: usize,
    ) -> Result<Place<'_>, Refused> {
        let waiter = Arc::new(waiter);
        let mut shard = self.lock(&logs);
        if let Some(denied) = shard.get(&logs).and_then(|queue| queue.too_long(ticket, &waiter)) {
            return Err(Refused::TooLong(denied));
        }
        let raise = |count| (count < most).then_some(count + 1);
        if self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise).is_err() {
            return Err(Refused::TooMany(first));
        }
        let queue = shard.entry(logs.clone()).or_default();
        queue.insert(ticket, waiter.clone());
        if let Some(denied) = first {
            queue.deny(ticket, denied);
        }
        drop(shard);
        Ok(Place { waiting: self, logs, ticket, waiter, is_admitted: false })
    }

    fn lock(&self, logs: &Logs) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(logs) as usize % SHARDS;
        // No user code runs under the lock, so a poisoned shard is consistent.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a caller can't wait.
enum Refused {
    /// It would wait for longer than it may.
    TooLong(Denied),
    /// Too many callers wait. With the denial of its own check if it has sent one.
    TooMany(Option<Denied>),
}

/// The place of a waiter in its queue. Dropping it lets the next one go on.
#[derive(Debug)]
struct Place<'a> {
    waiting: &'a Waiting,
    logs: Logs,
    ticket: u64,
    waiter: Arc<Waiter>,
    is_admitted: bool,
}

impl Place<'_> {
    /// Returns what the waiter has to do next.
    fn turn(&self) -> Turn {
        let mut shard = self.waiting.lock(&self.logs);
        // A wait that was ended is no longer in the queue, which may be gone.
        if let Some(denied) = self.waiter.denied() {
            return Turn::GiveUp(denied);
        }
        shard.get_mut(&self.logs).map_or(Turn::Check, |queue| queue.turn(self.ticket))
    }

    /// Returns when the waiter is woken.
    async fn woken(&self) {
        self.waiter.wake.notified().await;
    }

    /// Takes note of the denial of a check.
    fn deny(&self, denied: Denied) {
        if let Some(queue) = self.waiting.lock(&self.logs).get_mut(&self.logs) {
            queue.deny(self.ticket, denied);
        }
    }

    /// Leaves the queue after an admission.
    fn leave_admitted(mut self) {
        self.is_admitted = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut shard = self.waiting.lock(&self.logs);
        if let Some(queue) = shard.get_mut(&self.logs) {
            queue.remove(self.ticket, self.is_admitted);
            if queue.is_empty() {
                shard.remove(&self.logs);
            }
        }
        drop(shard);
        self.waiting.count.fetch_sub(1, Ordering::Relaxed);
    }
}
