//! [`MemoryStore`]: a store in the memory of one process.

mod bans;
mod local;
mod room;
mod shard;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;

use self::room::Room;
use self::shard::{EMPTY, Locked, SHARDS, Shard, shard_of};
use super::{Ban, BanPage, Store, StoreFuture};
use crate::error::StoreError;
use crate::policy::Policy;
use crate::telemetry::{Fill, MEMORY};
use crate::time::{Pace, micros};
use crate::window::{BanState, Check, Explanation, LogId, LogOutcome, Outcome, QuotaState};

const DEFAULT_CAPACITY: usize = 1_000_000;
/// How many logs, and how many ban records, that have come due an admission visits at most in each of its shards.
/// A log comes due at most as often as it has admissions, so two are enough to keep up, and none pays for a whole sweep.
const VISITED_AT_ONCE: usize = 2;

/// A store in the memory of this process.
///
/// It is a cheap handle: clones share the logs.
///
/// ## Behavior
///
/// - It is exact to the microsecond, on a monotonic clock. The clock is [`tokio::time::Instant`], so
///   tests can pause it. No runtime is needed.
/// - A log takes memory until it has expired: all its entries are as old as its retention. Later
///   admissions then drop it. There is no background thread.
/// - The number of logs is capped, see [`MemoryStore::with_capacity`]. A live log is never dropped.
///
/// ```
/// use tower_sliding_window::MemoryStore;
///
/// let store = MemoryStore::with_capacity(100_000);
/// assert!(store.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

// Concurrency. Shards are locked in ascending order. A check locks the shards of all its logs before it reads the
// clock, so it is atomic, and the timestamps of a log never step back.
struct Inner {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    epoch: Instant,
    logs: Arc<Room>,
    bans: Arc<Room>,
    fill: Fill,
    /// Requests without room and strikes without room that were not reported yet.
    refused: AtomicUsize,
    strikes_lost: AtomicUsize,
    /// When strikes without room were last reported: a client can bring one with each request.
    strikes_reported: Pace,
    /// When expired logs were last looked for because the store is nearly full.
    swept: Pace,
}

impl MemoryStore {
    /// Creates an empty store with a capacity of a million logs, see [`MemoryStore::with_capacity`].
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// Creates an empty store with a capacity of `capacity` logs.
    ///
    /// With a key of a dozen bytes a log takes about 180 bytes with one admission and about 280 bytes
    /// with five. A million logs take 180 to 280 MB, and some 90 MB more if each request makes a policy of its own.
    ///
    /// ## When the store is full
    ///
    /// A request whose key has no log gets [`StoreError::Full`](crate::StoreError::Full), which a layer turns into a 503, until
    /// a log has expired. With [`FailurePolicy::Open`](crate::FailurePolicy::Open) it passes and is not counted. A request
    /// whose key has a log is decided as usual.
    ///
    /// A client that invents a new user id for each request adds a log with each. The remedy is an additional rule by
    /// address: a denied request creates no log. The guide has the arithmetic and the recipe, in
    /// [a flood of invented ids](crate::docs::memory#a-flood-of-invented-ids).
    ///
    /// At 80 % of the capacity the store warns, with the feature `tracing`, and increments the gauge
    /// `sliding_window_memory_nearly_full`. It warns again only after it has fallen below 70 %.
    /// Requests without room are counted in `sliding_window_memory_full_total`.
    pub fn with_capacity(capacity: usize) -> Self {
        let [logs, bans] = [(); 2].map(|()| Arc::new(Room::new(capacity)));
        Self(Arc::new(Inner {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(&logs, &bans))).collect(),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            logs,
            bans,
            fill: Fill::new(&MEMORY, capacity),
            refused: AtomicUsize::new(0),
            strikes_lost: AtomicUsize::new(0),
            strikes_reported: Pace::new(),
            swept: Pace::new(),
        }))
    }

    /// Returns how many logs the store holds, expired ones included.
    pub fn len(&self) -> usize {
        self.0.logs.held()
    }

    /// Returns whether the store holds no log.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn now_us(&self) -> u64 {
        let elapsed = self.epoch.elapsed();
        elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
    }

    /// Returns the hash of a log's key, by which its shard is chosen. So all logs and ban records of a key are
    /// in one shard.
    fn hash(&self, log: &LogId) -> u64 {
        self.hasher.hash_one(log.key.as_bytes())
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No user code runs under the lock, so a poisoned shard is consistent.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_one(&self, log: &LogId) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hash(log);
        (hash, self.lock(shard_of(hash)))
    }

    /// Locks the shards of some logs, each once. The order is always the same, so that two checks can't
    /// deadlock.
    fn lock_all(&self, logs: &[LogId]) -> Locked<'_> {
        let hashes: SmallVec<[u64; 2]> = logs.iter().map(|log| self.hash(log)).collect();
        let mut shards: SmallVec<[usize; 2]> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        shards.sort_unstable();
        shards.dedup();
        let shards = shards.into_iter().map(|shard| (shard, self.lock(shard))).collect();
        Locked { hashes, shards }
    }

    /// Decides, or returns [`StoreError::Full`].
    fn try_decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        let mut locked = self.lock_all(&check.logs);
        // Read under the lock, so that the timestamps of one log never step back.
        let now_us = self.now_us();
        let mut slots = SmallVec::<[Option<u32>; 2]>::new();
        let mut outcomes = SmallVec::<[LogOutcome; 2]>::new();
        for (index, (log, cost)) in check.costs().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            let entries = slot.map_or(&EMPTY, |slot| &shard.logs[slot].entries);
            outcomes.push(entries.outcome(log, check.id, now_us, cost));
            slots.push(slot);
        }
        let mut outcome = Outcome::new(true, outcomes);
        outcome.timestamp = Some(Duration::from_micros(now_us));
        self.apply_penalties(&mut locked, check, now_us, &mut outcome, record);
        outcome.admitted = outcome.fits();
        if !outcome.admitted || !record || check.cost == 0 {
            return Ok(outcome);
        }
        let costs = || check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0);
        self.logs.reserve(costs().filter(|(index, _)| slots[*index].is_none()).count())?;
        for (index, (log, cost)) in costs() {
            let (shard, hash) = locked.shard(index);
            let slot = slots[index].unwrap_or_else(|| shard.insert(hash, log, now_us, 0));
            let stored = &mut shard.logs[slot];
            stored.add(log, check.id, now_us, cost);
            // If this is the local log of a `RedisStore`, Redis does not know the request yet.
            stored.doubted_us = now_us;
            let states = outcome.logs_mut()[index].quotas_mut();
            for (quota, state) in log.policy.quotas().iter().zip(states) {
                let wait_us = state.wait_us;
                *state = QuotaState { wait_us, ..stored.entries.state(now_us, *quota, 1) };
            }
        }
        // Only after all logs have recorded the request: an expired log of the check must not be
        // dropped before.
        for index in 0..check.logs.len() {
            self.drop_expired(locked.shard(index).0, now_us, VISITED_AT_ONCE);
        }
        Ok(outcome)
    }

    /// Sets the ban of each log, and counts a denial by a full quota as a strike if `record` is set.
    ///
    /// If there are as many ban records as there may be, the strike is lost and the denial stays.
    fn apply_penalties(
        &self,
        locked: &mut Locked<'_>,
        check: &Check,
        now_us: u64,
        outcome: &mut Outcome,
        record: bool,
    ) {
        for (index, log) in check.logs.iter().enumerate() {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let log_outcome = &mut outcome.logs_mut()[index];
            let full = (log_outcome.longest_full_window_us(&log.policy), penalty);
            let (shard, hash) = locked.shard(index);
            let ban = self.change_ban(shard, hash, log, now_us, |ban_record| {
                BanState::of(ban_record, now_us, check.id, full, record)
            });
            match ban {
                Ok(ban) => log_outcome.set_ban(ban),
                Err(_) => drop(self.strikes_lost.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}

impl MemoryStore {
    /// Returns what a check decides, and records it if `record` is set. Reports nothing, so that the
    /// caller may hold a lock.
    pub(in crate::store) fn decide(
        &self,
        check: &Check,
        record: bool,
    ) -> Result<Outcome, StoreError> {
        let inner = &self.0;
        let has_penalty = |log: &LogId| log.policy.get_penalty().is_some();
        if record
            && inner.bans.held() + check.logs.len() > inner.bans.capacity
            && check.logs.iter().any(has_penalty)
        {
            // For strikes. A denial whose strike has no room stays one.
            inner.make_room();
        }
        let decided = inner.make_room_for(|| inner.try_decide(check, record));
        if decided.is_err() {
            inner.refused.fetch_add(1, Ordering::Relaxed);
        }
        decided
    }

    pub(in crate::store) fn settle_here(&self, check: &Check, cost: u32) -> bool {
        let mut was_live = false;
        let mut locked = self.0.lock_all(&check.logs);
        let now_us = self.0.now_us();
        for (index, log) in check.logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let Some(cost) = log.settled_cost(cost) else { continue };
            let Some(slot) = shard.find(hash, log) else { continue };
            let stored = &mut shard.logs[slot];
            let is_live =
                stored.entries.find(check.id, now_us, log.policy.retention_us()).is_some();
            was_live |= is_live;
            if is_live || cost == 0 {
                stored.entries.settle(check.id, cost);
            }
            match stored.expires_us() <= now_us {
                true => shard.logs.remove(slot),
                false => shard.set_due(slot),
            }
        }
        was_live
    }

    pub(in crate::store) fn reset_here(&self, log: &LogId) {
        let (hash, mut shard) = self.0.lock_one(log);
        if let Some(slot) = shard.find(hash, log) {
            shard.logs.remove(slot);
        }
    }
}

impl Store for MemoryStore {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let decided = self.decide(check, true);
        self.report();
        StoreFuture::ready(decided)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        StoreFuture::ready(self.decide(check, false))
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        let (log, cost) = (&check.logs[0], check.cost_in(0));
        StoreFuture::ready(self.0.make_room_for(|| {
            let (hash, shard) = self.0.lock_one(log);
            let now_us = self.0.now_us();
            let slot = shard.find(hash, log);
            let entries = slot.map_or(&EMPTY, |slot| &shard.logs[slot].entries);
            let mut explanation = entries.explain(log, now_us, cost);
            if let Some(penalty) = log.policy.get_penalty() {
                let record = shard.ban(hash, log, now_us).cloned().unwrap_or_default();
                explanation = explanation.with_ban(record.explain(now_us, penalty));
            }
            if explanation.admitted && cost > 0 && slot.is_none() {
                self.0.logs.ensure_room()?;
            }
            Ok(explanation)
        }))
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let was_live = self.settle_here(check, cost);
        self.report_held();
        StoreFuture::ready(Ok(was_live))
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        self.reset_here(log);
        self.report_held();
        StoreFuture::ready(Ok(()))
    }

    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        let (hash, shard) = self.0.lock_one(log);
        let now_us = self.0.now_us();
        let record = shard.ban(hash, log, now_us);
        StoreFuture::ready(Ok(record.and_then(|record| bans::ban(record, now_us))))
    }

    fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> StoreFuture<Ban> {
        StoreFuture::ready(self.with_ban_record(log, |record, now_us| {
            let (penalty, stood) = (log.policy.get_penalty(), record.wait_us(now_us) > 0);
            let is_new = record.impose(now_us, micros(duration), reason, penalty, only_longer);
            let ban = bans::ban(record, now_us).unwrap_or_default();
            Ban { is_new, lengthens: is_new && stood, ..ban }
        }))
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        StoreFuture::ready(Ok(self.lift_ban(log)))
    }

    fn bans(&self, policy: &Arc<Policy>, from: u64, count: usize) -> StoreFuture<BanPage> {
        StoreFuture::ready(Ok(self.page_of_bans(policy, from, count)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("logs", &self.len())
            .field("capacity", &self.0.logs.capacity)
            .finish_non_exhaustive()
    }
}
