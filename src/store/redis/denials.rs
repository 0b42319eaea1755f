//! [`Denials`]: the denials of the last second, which this process repeats from memory.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ahash::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::policy::{Penalty, Policy};
use crate::time::micros;
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, Strike};

pub(super) const DEFAULT_CAPACITY: usize = 65_536;
/// Short, because a place can become free by more than time, also in other processes.
pub(super) const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);
/// Logs that share a generation only cost each other a denial.
const GENERATIONS: usize = 1024;

/// The denials of logs, each for one version of a policy.
///
/// - A denial holds until the instant before which time alone makes no room, and for at most a second. Under a policy that
///   counts strikes it ends with the episode, so that it hides no strike. The time counts from before the check was sent.
/// - Of a request with several logs each full log is found by itself. The outcome has the others as not read.
/// - It answers a new check of cost 1 only: the wait of a higher cost changes when a request of a lower cost is admitted.
///
/// # Interleavings
///
/// A denial must not be found after a place became free in this process. What frees one raises the
/// generation of its log, before the call and after it, and a denial is found only in the generation in
/// which its check was sent.
///
/// - Redis denies, then a reset runs, then the denial arrives. Its generation is an earlier one.
///   Test: `denial_beside_a_change_is_not_kept`.
/// - A check is sent after a reset has begun, and Redis denies before it resets. The generation is raised
///   again when the reset has ended.
/// - The caller hangs up during a reset. Redis may free the place later than that. A denial then lasts
///   for up to a second, as if another process had freed the place.
pub(super) struct Denials {
    /// Of each log the denials of the policies that share it.
    cache: Cache<LogId, SmallVec<[Arc<Denial>; 1]>, UnitWeighter, RandomState>,
    hasher: RandomState,
    generations: Box<[AtomicU64]>,
    max_age: Duration,
}

struct Denial {
    policy: Arc<Policy>,
    generation: u64,
    timestamp: Option<Duration>,
    outcome: LogOutcome,
    has_reset: bool,
    received: Instant,
    ends: Instant,
}

impl Denials {
    /// Keeps up to `capacity` denials, each for at most `max_age`. With zero it keeps none.
    pub(super) fn new(capacity: usize, max_age: Duration) -> Self {
        let (hasher, weighter) = (RandomState::new(), UnitWeighter);
        let lifecycle = DefaultLifecycle::default();
        Self {
            cache: Cache::with(capacity, capacity as u64, weighter, hasher.clone(), lifecycle),
            hasher,
            generations: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            max_age,
        }
    }

    /// Returns the generation of a log, which is also that of the ban of its key: policies of one name share that.
    fn generation(&self, log: &LogId) -> &AtomicU64 {
        let hash = self.hasher.hash_one((log.policy.base_name(), &log.key));
        &self.generations[hash as usize % GENERATIONS]
    }

    /// Returns the generation of a log.
    pub(super) fn generation_of(&self, log: &LogId) -> u64 {
        self.generation(log).load(Ordering::SeqCst)
    }

    /// Returns the generation of each log, for [`Denials::note`].
    pub(super) fn generations(&self, logs: &[LogId]) -> SmallVec<[u64; 2]> {
        logs.iter().map(|log| self.generation_of(log)).collect()
    }

    /// Returns the outcome of a check if a denial of one of its logs still holds.
    pub(super) fn find(&self, check: &Check, now: Instant) -> Option<Outcome> {
        // What is denied at another cost may fit at this one, or wait for longer.
        let denials: SmallVec<[_; 2]> = check
            .costs()
            .map(|(log, cost)| if cost == 1 { self.denial_of(log, now) } else { None })
            .map(|denial| denial.filter(|it| it.has_reset || !check.wants_reset))
            .collect();
        if denials.iter().all(Option::is_none) {
            return None;
        }
        let mut timestamp = None;
        let outcomes = check.logs.iter().zip(denials).map(|(log, denial)| {
            let Some(denial) = denial else { return LogOutcome::unread(&log.policy) };
            let age = now.saturating_duration_since(denial.received);
            timestamp = denial.timestamp.map(|it| it + age);
            denial.outcome.after(micros(age))
        });
        let mut outcome = Outcome::new(false, outcomes);
        outcome.timestamp = timestamp;
        Some(outcome)
    }

    fn denial_of(&self, log: &LogId, now: Instant) -> Option<Arc<Denial>> {
        let denials = self.cache.get(log)?;
        let denial = denials.into_iter().find(|denial| denial.policy == log.policy)?;
        (denial.ends > now && denial.generation == self.generation_of(log)).then_some(denial)
    }

    /// Takes note of the outcome of a check by Redis, with the generations of its logs from before it was
    /// sent: keeps the denials, and drops those whose waits an admission has made longer.
    pub(super) fn note(
        &self,
        check: &Check,
        outcome: &Outcome,
        sent: Instant,
        generations: &[u64],
    ) {
        if outcome.admitted {
            check.logs.iter().for_each(|log| {
                self.cache.remove(log);
            });
            return;
        }
        let received = Instant::now();
        for (((log, cost), log_outcome), generation) in
            check.costs().zip(outcome.logs()).zip(generations)
        {
            if cost != 1 {
                continue;
            }
            // A value in the log passes, and a request in flight may be over at any time.
            let wait_us = match log.policy.refreshes() {
                true => log_outcome.ban().remaining_us,
                false => log_outcome.wait_us(),
            };
            let mut ends_us = wait_us.min(micros(self.max_age));
            let strikes = log.policy.get_penalty().and_then(Penalty::strikes);
            if strikes.is_some() && !log_outcome.ban().is_banned() {
                ends_us = ends_us.min(log_outcome.ban().episode_us);
            }
            let ends = sent.checked_add(Duration::from_micros(ends_us));
            let Some(ends) = ends.filter(|ends| *ends > sent) else { continue };
            let mut denial = Denial {
                policy: log.policy.clone(),
                generation: *generation,
                timestamp: outcome.timestamp,
                outcome: log_outcome.clone(),
                has_reset: check.wants_reset,
                received,
                ends,
            };
            denial.outcome.set_ban(BanState { strike: Strike::None, ..log_outcome.ban() });
            let mut denials = self.cache.get(log).unwrap_or_default();
            denials.retain(|other| {
                other.policy != denial.policy
                    && other.generation == denial.generation
                    && other.ends > received
            });
            denials.push(Arc::new(denial));
            self.cache.insert(log.clone(), denials);
        }
    }

    /// Forgets the denials of logs in which a place becomes free, and those still under way.
    pub(super) fn forget(&self, logs: &[LogId]) {
        logs.iter().for_each(|log| {
            self.generation(log).fetch_add(1, Ordering::SeqCst);
        });
    }
}
