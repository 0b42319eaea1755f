//! [`MemoryStore`]: the windows of one process.

mod shard;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;

use self::shard::Shard;
use super::{Check, Partition, QuotaState, Store, StoreFuture, Verdict};
use crate::error::StoreError;
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
        }))
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

    /// Tells whether the store holds no window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn now_us(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn hash(&self, partition: &Partition) -> u64 {
        self.hasher.hash_one(partition)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No user code runs under the lock, so a poisoned shard is still whole.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shards of some windows, each once and always in the same order.
    fn lock_all(&self, partitions: &[Partition]) -> Locked<'_> {
        let hashes: SmallVec<[u64; 4]> = partitions.iter().map(|part| self.hash(part)).collect();
        let mut wanted: SmallVec<[usize; 4]> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let guards = wanted.iter().map(|index| (*index, self.lock(*index))).collect();
        Locked { hashes, guards }
    }

    fn decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        match self.try_decide(check, record) {
            Err(StoreError::Full { .. }) => {
                for shard in 0..SHARDS {
                    self.drop_expired(&mut self.lock(shard), self.now_us(), usize::MAX);
                }
                self.try_decide(check, record)
            }
            verdict => verdict,
        }
    }

    fn try_decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        let id = entry_id(check);
        let mut locked = self.lock_all(&check.partitions);
        // Read under the lock, so that the stamps of one window never run backwards.
        let now_us = self.now_us();

        let mut known = None;
        let mut absent = 0;
        let mut states = SmallVec::new();
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let log = match shard.find_mut(hash, partition) {
                Some(window) => {
                    window.log.forget(now_us, partition.policy.horizon_us());
                    &window.log
                }
                None => {
                    absent += 1;
                    &shard::UNUSED
                }
            };
            if check.repeated {
                known = known.or_else(|| log.find(id));
            }
            let judged = partition.policy.judged();
            states.extend(judged.map(|quota| log.state(now_us, quota, check.cost)));
        }
        let mut verdict = Verdict { admitted: true, at_us: Some(now_us), states };
        if let Some(at_us) = known {
            verdict.at_us = Some(at_us);
            verdict.states.iter_mut().for_each(|state| state.wait_us = 0);
            return Ok(verdict);
        }
        verdict.admitted = check.fits(&verdict.states);
        if !verdict.admitted || !record || check.cost == 0 {
            return Ok(verdict);
        }
        if absent > 0 && !self.reserve(absent) {
            return Err(StoreError::Full { capacity: self.capacity });
        }

        let mut states = verdict.states.iter_mut();
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let window = shard.find_or_insert(hash, partition, now_us, &self.hasher);
            window.log.add(Entry { at_us: now_us, id }, check.cost);
            for (quota, state) in partition.policy.judged().zip(&mut states) {
                let wait_us = state.wait_us;
                *state = QuotaState { wait_us, ..window.log.state(now_us, quota, 1) };
            }
            self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(verdict)
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

/// The shards of one decision, locked.
struct Locked<'a> {
    hashes: SmallVec<[u64; 4]>,
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    /// Returns the shard of the decision's `index`-th window, and the window's hash.
    fn shard(&mut self, index: usize) -> (&mut Shard, u64) {
        let hash = self.hashes[index];
        let wanted = shard_of(hash);
        let at = self.guards.partition_point(|(shard, _)| *shard < wanted);
        (&mut self.guards[at].1, hash)
    }
}

/// The table inside a shard uses a hash's low and top bits; these are between them.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// Half of the UUID tells the entries of one window apart: it has 62 random bits.
fn entry_id(check: &Check) -> u64 {
    check.id.as_u64_pair().1
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
            if let Some(window) = shard.find_mut(hash, partition) {
                removed += window.log.remove(entry_id(check));
                if window.log.newest_us().is_none() && shard.remove(hash, partition) {
                    self.0.windows.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        StoreFuture::ready(Ok(removed > 0))
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
