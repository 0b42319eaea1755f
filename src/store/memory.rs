//! [`MemoryStore`]: the windows of one process.

mod bans;
mod locked;
mod shard;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;
#[cfg(feature = "redis")]
use uuid::Uuid;

use self::locked::Locked;
use self::shard::Shard;
use super::expiring::{Expiring, Keep};
use super::{BanState, Check, Partition, Store, StoreFuture, Struck, Verdict};
use crate::error::StoreError;
#[cfg(feature = "moderation")]
use crate::moderation::Senders;
use crate::penalty::Standing;
use crate::policy::Policy;
use crate::storm::Groups;
use crate::window::Entry;

/// How many locks the windows are spread over.
const SHARDS: usize = 64;
/// How many windows a store holds unless told otherwise.
const DEFAULT_CAPACITY: usize = 1_000_000;
/// How many windows that have run out one admission drops at the most, so that each pays for
/// about its own and none for a whole sweep.
const DROPPED_PER_ADMISSION: usize = 2;

/// Keeps the windows in the memory of this process.
///
/// A cheap handle: clones share the windows.
///
/// ## Behavior
///
/// - Exact to the microsecond, on a monotonic clock ([`tokio::time::Instant`], so that paused
///   time is followed in tests). No runtime is needed.
/// - A window costs memory until it has run out; then later admissions drop it. There is no
///   thread.
/// - The number of windows is capped. At the cap, windows that have run out are dropped first; a
///   live window never is: a new key then gets [`StoreError::Full`].
///
/// ```
/// use tower_sliding_window::MemoryStore;
///
/// let store = MemoryStore::with_capacity(100_000);
/// assert_eq!(store.capacity(), 100_000);
/// assert!(store.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    epoch: Instant,
    windows: AtomicUsize,
    capacity: usize,
    standings: Expiring<Standing>,
    /// Made when a monitor first asks.
    #[cfg(feature = "moderation")]
    senders: std::sync::OnceLock<Senders>,
    /// Made when a detector first asks.
    groups: std::sync::OnceLock<Groups>,
    /// No window runs out before this instant. Raised only under `sweep`.
    due_us: AtomicU64,
    sweep: Mutex<()>,
}

impl MemoryStore {
    /// Creates an empty store for up to a million windows.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// Creates an empty store for up to `capacity` windows.
    ///
    /// A window is one key under one policy. Defaults to a million.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Arc::new(Inner {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            windows: AtomicUsize::new(0),
            capacity,
            standings: Expiring::new(capacity),
            #[cfg(feature = "moderation")]
            senders: std::sync::OnceLock::new(),
            groups: std::sync::OnceLock::new(),
            due_us: AtomicU64::new(u64::MAX),
            sweep: Mutex::default(),
        }))
    }

    /// Returns what is kept of senders, as many as there may be windows.
    #[cfg(feature = "moderation")]
    pub(crate) fn senders(&self) -> &Senders {
        self.0.senders.get_or_init(|| Senders::new(self.0.capacity))
    }

    /// Returns what is kept of groups, as many as there may be windows.
    pub(crate) fn groups(&self) -> &Groups {
        self.0.groups.get_or_init(|| Groups::new(self.0.capacity))
    }

    /// Returns how many windows the store may hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns how many windows the store holds, some of which may have run out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.windows.load(Ordering::Relaxed)
    }

    /// Returns what a window holds: each request's identity, weight and age, oldest first.
    #[cfg(feature = "redis")]
    pub(super) fn admissions(&self, partition: &Partition) -> Vec<(Uuid, u32, Duration)> {
        let hash = self.0.hash(partition);
        let shard = self.0.lock(shard_of(hash));
        let now_us = self.0.now_us();
        let Some(slot) = shard.find(hash, partition) else { return Vec::new() };
        let mut admissions: Vec<(Uuid, u32, Duration)> = Vec::new();
        for entry in shard.window(slot).log.live(now_us, partition.policy.horizon_us()) {
            match admissions.last_mut() {
                // The entries of one request have one stamp.
                Some((id, cost, _)) if *id == entry.id => *cost += 1,
                _ => {
                    let age = Duration::from_micros(now_us.saturating_sub(entry.at_us));
                    admissions.push((entry.id, 1, age));
                }
            }
        }
        admissions
    }

    /// Tells whether the store holds no window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn now_us(&self) -> u64 {
        let elapsed = self.epoch.elapsed();
        elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
    }

    fn hash(&self, partition: &Partition) -> u64 {
        shard::hash(&self.hasher, &partition.policy, partition.key.as_bytes())
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No user code runs under the lock, so a poisoned shard is still whole.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shards of some windows, each once and always in the same order.
    fn lock_all(&self, partitions: &[Partition]) -> Locked<'_> {
        if let [partition] = partitions {
            let hash = self.hash(partition);
            return Locked::One(hash, self.lock(shard_of(hash)));
        }
        let hashes: Vec<u64> = partitions.iter().map(|partition| self.hash(partition)).collect();
        let shards: BTreeSet<usize> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        Locked::Many(hashes, shards.into_iter().map(|shard| (shard, self.lock(shard))).collect())
    }

    fn decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        self.with_room(|| self.try_decide(check, record))
    }

    fn try_decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        let id = check.id;
        let mut locked = self.lock_all(&check.partitions);
        // Read under the lock, so that the stamps of one window never run backwards.
        let now_us = self.now_us();

        let mut known = None;
        let mut slots = SmallVec::<[Option<u32>; 1]>::new();
        let mut states = SmallVec::new();
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, partition);
            slots.push(slot);
            let log = slot.map_or(&shard::UNUSED, |slot| &shard.window(slot).log);
            if check.repeated {
                known = known.or_else(|| log.find(id, now_us, partition.policy.horizon_us()));
            }
            let judged = partition.policy.judged();
            states.extend(judged.map(|quota| log.state(now_us, quota, check.cost)));
        }
        let mut verdict = Verdict::new(true, Some(now_us), states);
        if let Some(at_us) = known {
            verdict.at_us = Some(at_us);
            verdict.states.iter_mut().for_each(|state| state.wait_us = 0);
            return Ok(verdict);
        }
        verdict.admitted = check.fits(&verdict.states);
        self.punish(check, &mut verdict, record)?;
        if !verdict.admitted || !record || check.cost == 0 {
            return Ok(verdict);
        }
        let absent = slots.iter().filter(|slot| slot.is_none()).count();
        if absent > 0 && !self.reserve(absent) {
            return Err(StoreError::Full { capacity: self.capacity });
        }

        let mut states = verdict.states.iter_mut();
        for (index, (partition, slot)) in check.partitions.iter().zip(slots).enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = slot.unwrap_or_else(|| self.insert(shard, hash, partition, now_us));
            shard.window_mut(slot).add(Entry { at_us: now_us, id }, check.cost, &partition.policy);
            for (quota, state) in partition.policy.judged().zip(&mut states) {
                state.remaining = state.remaining.saturating_sub(check.cost);
                if state.reset_us == 0 {
                    state.reset_us = quota.window_us();
                }
            }
        }
        // Not before all are recorded: a window about to be used again is not to be dropped.
        for index in 0..check.partitions.len() {
            self.drop_expired(locked.shard(index).0, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(verdict)
    }

    /// Denies what is banned, and counts a denial by a full quota as a strike if it is to be.
    fn punish(&self, check: &Check, verdict: &mut Verdict, count: bool) -> Result<(), StoreError> {
        for (place, partition) in check.partitions.iter().enumerate() {
            let Some(penalty) = partition.policy.penalty_for_strikes() else { continue };
            let full_us = check.longest_full_us(place, &verdict.states);
            let look = |standing: &mut Standing, now_us: u64| {
                let mut struck = Struck::No;
                if standing.wait_us(now_us) > 0 {
                    verdict.admitted = false;
                } else if full_us > 0 && count {
                    let rungs_us = penalty.rungs_us(check.id);
                    struck = standing.strike(now_us, check.id, full_us, penalty, &rungs_us);
                }
                let over_us = standing.over_us(penalty);
                let keep = if over_us > now_us { Keep::Until(over_us) } else { Keep::Not };
                (BanState::new(place, standing.wait_us(now_us), struck), keep)
            };
            let ban = self
                .standings
                .update(&standing_key(&partition.policy, partition.key.as_bytes()), look)?;
            if ban.matters() {
                verdict.bans.push(ban);
            }
        }
        Ok(())
    }

    fn try_restore(&self, check: &Check, age_us: u64) -> Result<(), StoreError> {
        let mut locked = self.lock_all(&check.partitions);
        let now_us = self.now_us();
        // What was admitted before there was a store is counted from its creation.
        let entry = Entry { at_us: now_us.saturating_sub(age_us), id: check.id };
        for (index, partition) in check.partitions.iter().enumerate() {
            if check.cost == 0 || age_us >= partition.policy.horizon_us() {
                continue;
            }
            let (shard, hash) = locked.shard(index);
            let slot = match shard.find(hash, partition) {
                Some(slot) => slot,
                None if self.reserve(1) => self.insert(shard, hash, partition, entry.at_us),
                None => return Err(StoreError::Full { capacity: self.capacity }),
            };
            shard.window_mut(slot).restore(entry, now_us, check.cost, &partition.policy);
            self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(())
    }

    /// Does what may need room, and once more after all windows that have run out were dropped.
    fn with_room<T>(&self, act: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match act() {
            Err(StoreError::Full { .. }) if self.make_room() => act(),
            done => done,
        }
    }

    /// Drops all windows that have run out, and says whether there may be room now.
    ///
    /// A flood of new keys comes here with each of them, and is not to go through all shards, whose
    /// locks others need, unless that is of use.
    fn make_room(&self) -> bool {
        let _sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if self.now_us() < self.due_us.load(Ordering::Relaxed) {
            // Another thread may have made some while this one waited for the lock.
            return self.windows.load(Ordering::Relaxed) < self.capacity;
        }
        // Windows made meanwhile lower it by themselves.
        self.due_us.store(u64::MAX, Ordering::Relaxed);
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            self.drop_expired(&mut shard, self.now_us(), usize::MAX);
            self.due_us.fetch_min(shard.due_us(), Ordering::Relaxed);
        }
        true
    }

    /// Makes a window to add an entry of that stamp to, and returns its slot.
    fn insert(&self, shard: &mut Shard, hash: u64, partition: &Partition, at_us: u64) -> u32 {
        let slot = shard.insert(hash, partition, at_us, &self.hasher);
        let due_us = shard.window(slot).due_us();
        if due_us < self.due_us.load(Ordering::Relaxed) {
            self.due_us.fetch_min(due_us, Ordering::Relaxed);
        }
        slot
    }

    /// Counts `more` windows in, unless that would pass the cap.
    fn reserve(&self, more: usize) -> bool {
        let grown = |windows: usize| Some(windows + more).filter(|sum| *sum <= self.capacity);
        self.windows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    fn drop_expired(&self, shard: &mut Shard, now_us: u64, most: usize) {
        let dropped = shard.drop_expired(now_us, most, &self.hasher);
        if dropped > 0 {
            self.windows.fetch_sub(dropped, Ordering::Relaxed);
        }
    }
}

/// What a standing is found by: no policy's name has a zero byte.
fn standing_key(policy: &Policy, key: &[u8]) -> Vec<u8> {
    [policy.window_name().as_bytes(), b"\0", key].concat()
}

/// The table inside a shard uses a hash's low and top bits; these are between them.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl Store for MemoryStore {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        StoreFuture::ready(self.0.decide(check, true))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        StoreFuture::ready(self.0.decide(check, false))
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        let mut removed = 0;
        let mut locked = self.0.lock_all(&check.partitions);
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            if let Some(slot) = shard.find(hash, partition) {
                let log = &mut shard.window_mut(slot).log;
                removed += log.remove(check.id);
                if log.newest_us().is_none() && shard.remove(hash, partition) {
                    self.0.windows.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        StoreFuture::ready(Ok(removed > 0))
    }

    fn restore(&self, check: &Check, age: Duration) -> StoreFuture<()> {
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        StoreFuture::ready(self.0.with_room(|| self.0.try_restore(check, age_us)))
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let mut locked = self.0.lock_all(partitions);
        for (index, partition) in partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            if shard.remove(hash, partition) {
                self.0.windows.fetch_sub(1, Ordering::Relaxed);
            }
        }
        StoreFuture::ready(Ok(()))
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
            .field("windows", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
