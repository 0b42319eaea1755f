//! [`MemoryStore`]: the logs of one process.

mod bans;
mod decide;
mod fill;
mod locked;
mod room;
mod shard;
#[cfg(feature = "redis")]
mod snapshot;
#[cfg(any(feature = "storm", feature = "moderation"))]
mod tables;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tokio::time::Instant;

use self::fill::Fill;
use self::locked::Locked;
use self::shard::Shard;
#[cfg(any(feature = "storm", feature = "moderation"))]
use self::tables::Tables;
use super::expiring::ExpiringMap;
use super::{LogSnapshot, Restored, Store, StoreFuture};
use crate::policy::Policy;
use crate::window::{BanRecord, Check, LogId, Outcome};

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
    /// How many logs there are.
    held: AtomicUsize,
    capacity: usize,
    fill: Fill,
    ban_records: ExpiringMap<BanRecord>,
    #[cfg(any(feature = "storm", feature = "moderation"))]
    tables: Tables,
    /// No window runs out before this instant. Raised only under `sweep`.
    due_us: AtomicU64,
    /// Held to drop what has run out everywhere. How long the policies were then, by log name.
    sweep: Mutex<HashMap<String, u64, RandomState>>,
}

impl MemoryStore {
    /// Creates an empty store for up to a million logs, see [`MemoryStore::with_capacity`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// Creates an empty store for up to `capacity` logs. Defaults to a million.
    ///
    /// A log is what is kept of one key under one policy, until its last admission is one window
    /// old. With a key of a dozen bytes it takes about 110 bytes with one admission and about 240
    /// with five: a million logs take 110 to 240 MB.
    ///
    /// ## When the store is full
    ///
    /// A live log is never dropped. At the capacity a request whose key has no log gets
    /// [`StoreError::Full`], from a layer a 503, until some log has run out. A key with a log is
    /// decided on as ever. With [`FailurePolicy::Open`](crate::FailurePolicy::Open) such a request
    /// passes and is not counted.
    ///
    /// A client that invents a new user id for each request adds a log with each. So `requests a
    /// second * window` ids are live at once, and the store is full after `capacity / requests a
    /// second`, unless the window is shorter than that: a million logs under `5/60s` are full after
    /// 33 seconds of 30,000 requests a second, and never at less than 16,667 a second. The store then
    /// stays full for as long as the flood goes on, and up to one window longer.
    ///
    /// What helps is a rule by address beside the rule by user: a denied request makes no log, so an
    /// address makes no more logs for users than it is admitted requests. The guide has the recipe,
    /// in "A flood of invented ids".
    ///
    /// At 80 % of the capacity the store warns through `tracing`, once until it has fallen below
    /// 70 %, and the gauge `sliding_window_memory_nearly_full` rises. Requests it has no room for are
    /// counted in `sliding_window_memory_full_total`.
    ///
    /// ```
    /// use tower_sliding_window::MemoryStore;
    ///
    /// let store = MemoryStore::with_capacity(4_000_000); // up to 1 GB with `5/60s`
    /// assert_eq!(store.capacity(), 4_000_000);
    /// ```
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Arc::new(Inner {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            held: AtomicUsize::new(0),
            capacity,
            fill: Fill::new(capacity),
            ban_records: ExpiringMap::new(capacity),
            #[cfg(any(feature = "storm", feature = "moderation"))]
            tables: Tables::default(),
            due_us: AtomicU64::new(u64::MAX),
            sweep: Mutex::default(),
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
        self.0.held.load(Ordering::Relaxed)
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

    fn hash(&self, log: &LogId) -> u64 {
        shard::hash(&self.hasher, &log.policy, log.key.as_bytes())
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No user code runs under the lock, so a poisoned shard is still whole.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shards of some windows, each once and always in the same order.
    fn lock_all(&self, logs: &[LogId]) -> Locked<'_> {
        if let [log] = logs {
            let hash = self.hash(log);
            return Locked::One(hash, self.lock(shard_of(hash)));
        }
        let hashes: Vec<u64> = logs.iter().map(|log| self.hash(log)).collect();
        let shards: BTreeSet<usize> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        Locked::Many(hashes, shards.into_iter().map(|shard| (shard, self.lock(shard))).collect())
    }
}

/// What a record is found by: no policy's name has a zero byte.
fn ban_record_key(policy: &Policy, key: &[u8]) -> Vec<u8> {
    [policy.log_name().as_bytes(), b"\0", key].concat()
}

/// The table inside a shard uses a hash's low and top bits; these are between them.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl Store for MemoryStore {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        StoreFuture::ready(self.0.decide(check, true))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        StoreFuture::ready(self.0.decide(check, false))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let mut was_live = false;
        let mut locked = self.0.lock_all(&check.logs);
        let now_us = self.0.now_us();
        for (index, log) in check.logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let Some(slot) = shard.find(hash, log) else { continue };
            let longest_window_us = log.policy.longest_window_us();
            let stored = shard.log_mut(slot);
            was_live |= stored.entries.find(check.id, now_us, longest_window_us).is_some();
            stored.entries.remove(check.id);
            if stored.has_run_out(now_us) && shard.remove(hash, log) {
                self.0.held.fetch_sub(1, Ordering::Relaxed);
            }
        }
        StoreFuture::ready(Ok(was_live))
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        let restore = || self.0.try_restore(log, &known.admissions);
        let added = self.0.with_room(std::slice::from_ref(log), restore);
        let imposed = known.ban.as_ref().map_or(Ok(()), |ban| {
            self.restore_ban(log, ban.remaining, &ban.reason, ban.store_timestamp)
        });
        StoreFuture::ready(imposed.and(added).map(Restored::added))
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let mut locked = self.0.lock_all(logs);
        for (index, log) in logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            if shard.remove(hash, log) {
                self.0.held.fetch_sub(1, Ordering::Relaxed);
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
            .field("logs", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
