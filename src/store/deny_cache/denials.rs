//! [`Denials`]: the cached denials, log by log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ahash::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::hashed_log::{HashedLog, Hashes, KnownHash};
use crate::policy::Policy;
use crate::time::{micros, nanos};
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, Rollback, Strike};

/// The part of its time after which a denial is renewed, so that the requests of a busy key do not
/// all go to the store when it expires.
const RENEWED_AT: f64 = 0.75;
/// Logs that share a generation counter only cost each other a cached denial.
const GENERATIONS: usize = 1024;

// # Interleavings
//
// A denial must not be cached if a place becomes free, through a clone of this cache, after the
// store has denied. Resets, settlements, cancellations and restores hold an `Invalidation`; it increments the
// generation of each log and removes the denial, before the call and again at its end.
//
// - The store denies, then a reset runs, then the denial arrives. The check has read the generation
//   before it was sent, and `insert` finds another one. It inserts first and compares afterwards,
//   while an invalidation increments first and removes afterwards: so either `insert` sees the
//   increment, or the removal comes after the insertion.
//   Test: `denial_overtaken_by_a_reset_is_not_cached`.
// - A check is sent after the reset has begun, and the store denies before it resets. If the denial
//   arrives before the reset has ended, the end of the invalidation removes it. If it arrives
//   later, `insert` finds another generation.
// - A rollback is under way. Other checks may be denied by the request that is rolled back. The
//   outcome of that request invalidates the logs, cached denials and those still under way.
//   Test: `rollback_drops_cached_denials`.
// - The caller hangs up during a reset or a rollback. The future is dropped, and the store may free
//   the place later than that. A denial then lasts for up to `max_age`, as if another process had
//   freed the place.
// - Many requests find a denial that is due for renewal. One of them claims it and goes to the
//   store; the others are still denied from memory. If that one fails, the denial expires as
//   planned. Test: `busy_key_costs_one_check_at_a_time`.
pub(super) struct Denials {
    cache: Cache<HashedLog<LogId>, Arc<Denial>, UnitWeighter, KnownHash>,
    hasher: RandomState,
    generations: Box<[AtomicU64]>,
    epoch: Instant,
    /// When the last denial expires, or 0 if none was cached since the others had expired. Raised before a
    /// denial is inserted, so that there is none to find if it has passed.
    last_expires_ns: AtomicU64,
}

pub(super) struct Denial {
    policy: Arc<Policy>,
    timestamp: Option<Duration>,
    outcome: LogOutcome,
    /// When the denial arrived, in nanoseconds after the epoch, as are the other instants.
    received_ns: u64,
    expires_ns: u64,
    /// When one request goes to the store to renew the denial, if the store will deny for longer.
    renew_ns: Option<u64>,
    is_renewed: AtomicBool,
}

impl Denial {
    /// Returns whether the caller has to renew the denial. Returns `true` once.
    fn claim_renewal(&self, now_ns: u64) -> bool {
        // Read first, because that is cheaper while another caller renews it.
        self.renew_ns.is_some_and(|renew_ns| renew_ns <= now_ns)
            && !self.is_renewed.load(Ordering::Relaxed)
            && !self.is_renewed.swap(true, Ordering::Relaxed)
    }

    /// Returns how long ago the denial arrived.
    fn age(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.received_ns))
    }

    /// Returns what the store said, as it is after an age.
    fn outcome(&self, age: Duration) -> LogOutcome {
        let elapsed_us = micros(age);
        let mut outcome = self.outcome.after(elapsed_us);
        let remaining_us = self.outcome.ban().remaining_us.saturating_sub(elapsed_us);
        outcome.set_ban(BanState { remaining_us, strike: Strike::None });
        outcome
    }
}

impl Denials {
    pub(super) fn new(capacity: usize) -> Self {
        let hasher = RandomState::new();
        let cache = Cache::with(
            capacity,
            capacity as u64,
            UnitWeighter,
            KnownHash::default(),
            DefaultLifecycle::default(),
        );
        let generations = (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect();
        Self {
            cache,
            hasher,
            generations,
            epoch: Instant::now(),
            last_expires_ns: AtomicU64::new(0),
        }
    }

    /// Returns an instant in nanoseconds after the epoch.
    pub(super) fn nanos_at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.epoch))
    }

    /// Returns whether all denials have expired. A check then leaves out the search for one: most services
    /// deny nothing for most of the time.
    pub(super) fn have_expired(&self, now_ns: u64) -> bool {
        let (last, order) = (&self.last_expires_ns, Ordering::SeqCst);
        let last_ns = last.load(order);
        // The exchange fails if a denial that expires later is being inserted.
        last_ns == 0
            || (last_ns <= now_ns && last.compare_exchange(last_ns, 0, order, order).is_ok())
    }

    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Returns the hash of a log, which the other methods need.
    pub(super) fn hash(&self, log: &LogId) -> u64 {
        self.hasher.hash_one(log)
    }

    /// Returns the hash of each log.
    pub(super) fn hashes(&self, logs: &[LogId]) -> Hashes {
        let mut hashes = Hashes::new();
        for log in logs {
            hashes.push(self.hash(log));
        }
        hashes
    }

    pub(super) fn generation(&self, hash: u64) -> u64 {
        self.generation_counter(hash).load(Ordering::SeqCst)
    }

    fn generation_counter(&self, hash: u64) -> &AtomicU64 {
        &self.generations[hash as usize % GENERATIONS]
    }

    /// Returns the cached denial of a check, unless a denial of one of its logs has to be renewed.
    pub(super) fn deny(&self, check: &Check, hashes: &Hashes, now_ns: u64) -> Option<Outcome> {
        let (mut outcomes, mut timestamp) = (SmallVec::<[LogOutcome; 1]>::new(), None);
        let unread = |log: &LogId| LogOutcome::unread(&log.policy);
        for (index, (log, hash)) in check.logs.iter().zip(hashes).enumerate() {
            let Some(denial) = self.find(log, *hash, now_ns) else { continue };
            if denial.claim_renewal(now_ns) {
                return None;
            }
            let age = denial.age(now_ns);
            timestamp = denial.timestamp.map(|timestamp| timestamp + age);
            let without_denial = &check.logs[outcomes.len()..index];
            without_denial.iter().for_each(|log| outcomes.push(unread(log)));
            outcomes.push(denial.outcome(age));
        }
        if outcomes.is_empty() {
            return None;
        }
        check.logs[outcomes.len()..].iter().for_each(|log| outcomes.push(unread(log)));
        let mut outcome = Outcome::from_logs(false, outcomes);
        (outcome.timestamp, outcome.from_cache) = (timestamp, true);
        Some(outcome)
    }

    /// Returns the denial of a log that still holds.
    pub(super) fn find(&self, log: &LogId, hash: u64, now_ns: u64) -> Option<Arc<Denial>> {
        let hashed = HashedLog { hash, log };
        let denial = self.cache.get(&hashed)?;
        if denial.policy != log.policy {
            // The log may change under the new policy, and the old policy may come back.
            self.cache.remove(&hashed);
            return None;
        }
        (denial.expires_ns > now_ns).then_some(denial)
    }

    /// Caches the denials of a check, with the generations of its logs from before it was sent.
    pub(super) fn insert(
        &self,
        logs: &[LogId],
        hashes: &Hashes,
        outcome: &Outcome,
        sent_ns: u64,
        max_age: Duration,
        generations: &[u64],
    ) {
        let received_ns = self.nanos_at(Instant::now());
        let logs = logs.iter().zip(hashes).zip(outcome.logs()).zip(generations);
        for (((log, hash), log_outcome), generation) in logs {
            let wait = Duration::from_micros(log_outcome.wait_us());
            let age = wait.min(max_age);
            if age.is_zero() {
                continue;
            }
            let after = |time| sent_ns.saturating_add(nanos(time));
            let denial = Denial {
                policy: log.policy.clone(),
                timestamp: outcome.timestamp,
                outcome: log_outcome.clone(),
                received_ns,
                expires_ns: after(age),
                renew_ns: (age < wait).then(|| after(age.mul_f64(RENEWED_AT))),
                is_renewed: AtomicBool::new(false),
            };
            self.last_expires_ns.fetch_max(denial.expires_ns, Ordering::SeqCst);
            self.cache.insert(HashedLog { hash: *hash, log: log.clone() }, Arc::new(denial));
            if self.generation(*hash) != *generation {
                self.cache.remove(&HashedLog { hash: *hash, log });
            }
        }
    }

    /// Drops the denials that an outcome makes wrong: an admission makes later waits longer, and a
    /// rollback frees a place.
    pub(super) fn observe(&self, logs: &[LogId], hashes: &Hashes, outcome: &Outcome) {
        for (log, hash) in logs.iter().zip(hashes) {
            if outcome.rollback != Rollback::NotNeeded {
                self.invalidate(log, *hash);
            } else if outcome.admitted {
                self.cache.remove(&HashedLog { hash: *hash, log });
            }
        }
    }

    fn invalidate(&self, log: &LogId, hash: u64) {
        self.generation_counter(hash).fetch_add(1, Ordering::SeqCst);
        self.cache.remove(&HashedLog { hash, log });
    }
}

/// Invalidates the denials of logs that are being changed: when it is created, and when it is
/// dropped.
pub(super) struct Invalidation {
    denials: Arc<Denials>,
    logs: SmallVec<[LogId; 1]>,
}

impl Invalidation {
    pub(super) fn new(denials: &Arc<Denials>, logs: &[LogId]) -> Self {
        let invalidation = Self { denials: denials.clone(), logs: logs.into() };
        invalidation.invalidate();
        invalidation
    }

    fn invalidate(&self) {
        for (log, hash) in self.logs.iter().zip(self.denials.hashes(&self.logs)) {
            self.denials.invalidate(log, hash);
        }
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.invalidate();
    }
}
