//! [`WaitQueues`]: the callers that wait for room in a log.

mod queue;
#[cfg(all(test, feature = "memory"))]
mod tests;
mod until_admitted;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;

use self::queue::{Queue, Turn, Waiter};
pub(crate) use self::until_admitted::{Bounds, NotAdmitted, deny_behind, until_admitted};
use crate::error::StoreError;
use crate::policy::Counts;
use crate::window::{Check, Denied, LogId, Outcome};

pub(crate) const DEFAULT_MAX_WAITERS: usize = 10_000;

type Queues = HashMap<LogId, Queue, RandomState>;

// A caller waits in the queue of one log: of the one that denied its check for longest, or of the first of its
// logs that others wait for already. Once it is the first there, it checks all of its logs. If another log
// denies it then, it goes to the queue of that one, to the place that its ticket gives it.
//
// # Interleavings
//
// A queue and the denials of its waiters change under the lock only.
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
// - The first waiter is admitted while a later caller looks at its logs. That caller is in its place already, at no
//   cost, so that nobody who comes meanwhile is before it. Test: `caller_that_looks_at_its_logs_is_not_overtaken`.
// - Two callers are the first ones of two queues and each finds the other log full. Only the later one
//   goes behind the earlier one, so that they do not change places for ever.
// - `count` is raised before a waiter is in its first queue and lowered after it has left the last. A
//   caller that reads 0 has arrived at the same time as a waiter that joins, so neither is earlier.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    count: AtomicUsize,
    tickets: AtomicU64,
    /// Of each log that one waits for.
    queues: Mutex<Queues>,
}

impl WaitQueues {
    /// Returns the number of a caller in the order of arrival.
    fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the index of the first log in which a request takes a place and that a caller with an earlier
    /// ticket waits for.
    fn behind(&self, check: &Check, ticket: u64) -> Option<usize> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let queues = self.lock();
        let is_before = |log| queues.get(log).is_some_and(|it: &Queue| it.is_before(ticket));
        check.costs().position(|(log, cost)| has_turns(log, cost) && is_before(log))
    }

    /// Returns whether a caller that has not joined would wait for longer than it may.
    fn is_too_long(&self, log: &LogId, ticket: u64, waiter: &Waiter) -> bool {
        self.lock().get(log).is_some_and(|queue| queue.is_too_long(ticket, waiter))
    }

    /// Returns the denial of a request of one log behind all that wait for it, if they have the same quotas.
    fn known_denial(&self, check: &Check) -> Option<Outcome> {
        let [log] = &*check.logs else { return None };
        let queues = self.lock();
        let (policy, outcome) = queues.get(log)?.behind_all(check.cost_in(0))?;
        (check.cost > 0 && policy.quotas() == log.policy.quotas()).then_some(outcome)
    }

    /// Turns the outcome into a denial. In each log its wait counts all that wait there. Callers that wait for another log are
    /// not counted: they may take a place here later, or never.
    fn deny_behind_all(&self, check: &Check, outcome: &mut Outcome) {
        let queues = self.lock();
        outcome.admitted = false;
        for ((log, cost), outcome) in check.costs().zip(outcome.logs_mut()) {
            let queue = queues.get(log).filter(|it| !it.takes_nothing() && has_turns(log, cost));
            if let Some(queue) = queue {
                queue.raise_behind_all(outcome, &log.policy, cost);
            }
        }
        // Those that waited may have left.
        if outcome.fits()
            && let Some(log) = outcome.logs_mut().first_mut()
        {
            log.wait_at_least(1);
        }
    }

    /// Counts a caller among those that wait, if fewer than `most` do.
    fn count(&self, most: usize) -> Option<WaiterCount<'_>> {
        let raise = |count| (count < most).then_some(count + 1);
        let counted = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
        counted.ok().map(|_| WaiterCount(&self.count))
    }

    /// Makes a caller wait for room in a log, with the denial of that if it was not behind others.
    fn join(
        &self,
        log: LogId,
        ticket: u64,
        waiter: Waiter,
        denied: Option<Denied>,
    ) -> QueuedCaller<'_> {
        let waiter = Arc::new(waiter);
        let mut queues = self.lock();
        let queue = queues.entry(log.clone()).or_default();
        queue.insert(ticket, waiter.clone());
        if let Some(denied) = denied {
            queue.deny(ticket, denied);
        }
        drop(queues);
        QueuedCaller { waiting: self, log, ticket, waiter, is_admitted: false }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // No user code runs under the lock, so what is behind a poisoned one is consistent.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a request takes its turn in a log. A value that is there takes no place, so each request with a
/// value checks first.
fn has_turns(log: &LogId, cost: u32) -> bool {
    cost > 0 && log.policy.counts() != Counts::Distinct
}

/// Counts a caller among those that wait until it is dropped.
#[derive(Debug)]
struct WaiterCount<'a>(&'a AtomicUsize);

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A caller in the queue of a log. Dropping it lets the next one go on.
#[derive(Debug)]
struct QueuedCaller<'a> {
    waiting: &'a WaitQueues,
    log: LogId,
    ticket: u64,
    waiter: Arc<Waiter>,
    is_admitted: bool,
}

impl QueuedCaller<'_> {
    /// Returns what the waiter has to do next.
    fn turn(&self) -> Turn {
        let mut queues = self.waiting.lock();
        // A wait that was ended is no longer in the queue, which may be gone.
        queues.get_mut(&self.log).map_or(Turn::GiveUp, |queue| queue.turn(self.ticket))
    }

    /// Takes note of what a check has learned about the log.
    fn deny(&self, denied: Denied) {
        if let Some(queue) = self.waiting.lock().get_mut(&self.log) {
            queue.deny(self.ticket, denied);
        }
    }
}

impl Drop for QueuedCaller<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiting.lock();
        if let Entry::Occupied(mut queue) = queues.entry(self.log.clone()) {
            queue.get_mut().remove(self.ticket, &self.waiter, self.is_admitted);
            if queue.get().is_empty() {
                queue.remove();
            }
        }
    }
}

/// Why a wait for an admission ended without one.
///
/// No log has recorded the request, unless [`StoreError::may_have_counted`] says that one may have. No
/// message holds a key.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The request was denied: its key is banned, or the wait would be longer than it may be.
    #[error("denied{}", .0.known_wait().map_or_else(String::new, |wait| format!(" for the next {wait:?}")))]
    Denied(Denied),
    /// As many callers wait as may wait for the limiter, see
    /// [`Limiter::max_waiters`](crate::Limiter::max_waiters).
    #[error("too many callers wait: the limiter allows {most}")]
    TooManyWaiters {
        /// How many may wait.
        most: usize,
    },
    /// The store could not decide, or the request can never pass.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WaitError {
    /// Returns how long the caller should wait before it tries again, or `None` if no wait helps or its length is not known.
    ///
    /// It is the time of the denial or of the error of the store, and a second after [`WaitError::TooManyWaiters`]. It is `None`
    /// if a policy denies that counts requests in flight, see [`Denied::has_known_wait`].
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(denied) => denied.known_wait(),
            Self::TooManyWaiters { .. } => Some(Duration::from_secs(1)),
            Self::Store(error) => error.retry_after(),
        }
    }

    /// Returns the denial, or `None` if there was none.
    pub fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }
}
