//! [`MemoryStore`]: the windows of one process.

mod bans;
mod decide;
mod fill;
#[cfg(feature = "redis")]
mod known;
mod locked;
mod shard;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tokio::time::Instant;

use self::fill::Fill;
use self::locked::Locked;
use self::shard::Shard;
use super::expiring::Expiring;
use super::{Check, KnownLog, Partition, Restored, Store, StoreFuture, Verdict};
use crate::error::StoreError;
#[cfg(feature = "moderation")]
use crate::moderation::Senders;
use crate::penalty::Standing;
use crate::policy::Policy;
use crate::report;
use crate::storm::Groups;
use crate::window::micros;

/// How many locks the windows are spread over.
const SHARDS: usize = 64;
/// How many windows a store holds unless told otherwise.
const DEFAULT_CAPACITY: usize = 1_000_000;
/// How many bytes the messages of senders, and those of groups, may take unless told otherwise.
const DEFAULT_MESSAGE_BYTES: usize = 256 << 20;
/// How many windows that have run out one admission drops at the most, so that each pays for
/// about its own and none for a whole sweep.
const DROPPED_PER_ADMISSION: usize = 2;
/// Of how many policies the store remembers how long they were when it was last full.
const MOST_HORIZONS: usize = 1024;

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
    fill: Fill,
    standings: Expiring<Standing>,
    /// Made when a monitor first asks.
    #[cfg(feature = "moderation")]
    senders: std::sync::OnceLock<Senders>,
    /// Made when a detector first asks.
    groups: std::sync::OnceLock<Groups>,
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
            windows: AtomicUsize::new(0),
            capacity,
            fill: Fill::new(capacity),
            standings: Expiring::new(capacity),
            #[cfg(feature = "moderation")]
            senders: std::sync::OnceLock::new(),
            groups: std::sync::OnceLock::new(),
            due_us: AtomicU64::new(u64::MAX),
            sweep: Mutex::default(),
        }))
    }

    /// Sets how many bytes may be taken by what a [`SpeechMonitor`](crate::moderation::SpeechMonitor)
    /// keeps of senders, in this store and all clones of it. Defaults to 256 MiB.
    ///
    /// A sender takes about 230 bytes, and each message 60 bytes and its text, of which at most 500
    /// characters are kept, up to 2,000 bytes. So 256 MiB are room for 800,000 senders with one message
    /// of 20 Chinese characters each, or for 120,000 of the longest messages. A message is kept for the
    /// longest window of the rules. Of one sender at most 64 texts are kept, 135 kB of the longest.
    ///
    /// When the bytes are used up, what is over is dropped first. What is live never is, and a mute is
    /// always imposed and kept. A message that finds no room is judged by what is kept of its sender,
    /// and is not kept itself; unless its sender is muted, the monitor then returns
    /// [`StoreError::TooManyBytes`].
    ///
    /// ```
    /// use tower_sliding_window::MemoryStore;
    ///
    /// let store = MemoryStore::new().speech_bytes(64 << 20);
    /// assert_eq!(store.speech_bytes_used(), 0);
    /// ```
    #[cfg(feature = "moderation")]
    #[must_use]
    pub fn speech_bytes(self, bytes: usize) -> Self {
        self.senders().set_budget(bytes);
        self
    }

    /// Returns how many bytes what is kept of senders takes, some of which may be over.
    ///
    /// It is the sum of what was asked of the allocator. That takes some more itself, and keeps tables
    /// that have grown.
    #[cfg(feature = "moderation")]
    #[must_use]
    pub fn speech_bytes_used(&self) -> usize {
        self.senders().bytes()
    }

    /// Returns what is kept of senders, as many as there may be windows.
    #[cfg(feature = "moderation")]
    pub(crate) fn senders(&self) -> &Senders {
        self.0.senders.get_or_init(|| {
            let senders = Senders::new(self.0.capacity);
            senders.set_budget(DEFAULT_MESSAGE_BYTES);
            senders
        })
    }

    /// Sets how many bytes may be taken by what a [`StormDetector`](crate::StormDetector) keeps of
    /// groups, in this store and all clones of it. Defaults to 256 MiB.
    ///
    /// A group takes about 300 bytes, and each message of the last window 115 to 230 bytes, and 256
    /// more if its id is longer than 40 bytes. So 256 MiB are room for more than a million messages.
    ///
    /// When the bytes are used up, what is over is dropped first, and what is live never is. A message
    /// that finds no room is not counted, and the detector returns [`StoreError::TooManyBytes`]. Storms
    /// that go on end as ever.
    #[must_use]
    pub fn storm_bytes(self, bytes: usize) -> Self {
        self.groups().set_budget(bytes);
        self
    }

    /// Returns how many bytes what is kept of groups takes, some of which may be over.
    #[must_use]
    pub fn storm_bytes_used(&self) -> usize {
        self.groups().bytes()
    }

    /// Returns what is kept of groups, as many as there may be windows.
    pub(crate) fn groups(&self) -> &Groups {
        self.0.groups.get_or_init(|| {
            let groups = Groups::new(self.0.capacity);
            groups.set_budget(DEFAULT_MESSAGE_BYTES);
            groups
        })
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

    /// Does what may need room, and once more after all windows that have run out were dropped.
    fn with_room<T>(
        &self,
        partitions: &[Partition],
        act: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = act();
        let again = matches!(done, Err(StoreError::Full { .. })) && self.make_room(partitions);
        let done = if again { act() } else { done };
        self.fill.notice(self.windows.load(Ordering::Relaxed));
        if let Err(StoreError::Full { .. }) = done {
            report::memory_full();
        }
        done
    }

    /// Drops all windows that have run out, and says whether there may be room now.
    ///
    /// A flood of new keys comes here with each of them, and is not to go through all shards, whose
    /// locks others need, unless that is of use.
    fn make_room(&self, partitions: &[Partition]) -> bool {
        let mut horizons = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        for partition in partitions {
            self.shorten(&mut horizons, &partition.policy);
        }
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

    /// Holds the logs of a policy to its present length, if that is shorter than when they were
    /// last gone through: those of keys that do not come again would keep their places for the old.
    fn shorten(&self, horizons: &mut HashMap<String, u64, RandomState>, policy: &Arc<Policy>) {
        let horizon_us = policy.horizon_us();
        let before_us = horizons.get(policy.window_name()).copied();
        if before_us == Some(horizon_us) {
            return;
        }
        if horizons.len() >= MOST_HORIZONS {
            horizons.clear();
        }
        horizons.insert(policy.window_name().to_owned(), horizon_us);
        if before_us.is_some_and(|before_us| before_us < horizon_us) {
            return;
        }
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            shard.shorten(policy);
            self.due_us.fetch_min(shard.due_us(), Ordering::Relaxed);
        }
    }

    /// Has the entries of a window matter for as long as `policy` says.
    fn adopt(&self, shard: &mut Shard, slot: u32, policy: &Arc<Policy>) {
        shard.adopt(slot, policy);
        self.note_due(shard.window(slot).due_us());
    }

    fn note_due(&self, due_us: u64) {
        if due_us < self.due_us.load(Ordering::Relaxed) {
            self.due_us.fetch_min(due_us, Ordering::Relaxed);
        }
    }

    /// Makes a window to add an entry of that stamp to, and returns its slot.
    fn insert(&self, shard: &mut Shard, hash: u64, partition: &Partition, at_us: u64) -> u32 {
        let slot = shard.insert(hash, partition, at_us, &self.hasher);
        self.note_due(shard.window(slot).due_us());
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
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        StoreFuture::ready(self.0.decide(check, true))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        StoreFuture::ready(self.0.decide(check, false))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let mut was_live = false;
        let mut locked = self.0.lock_all(&check.partitions);
        let now_us = self.0.now_us();
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let Some(slot) = shard.find(hash, partition) else { continue };
            let horizon_us = partition.policy.horizon_us();
            let window = shard.window_mut(slot);
            was_live |= window.log.find(check.id, now_us, horizon_us).is_some();
            window.log.remove(check.id);
            if window.has_run_out(now_us) && shard.remove(hash, partition) {
                self.0.windows.fetch_sub(1, Ordering::Relaxed);
            }
        }
        StoreFuture::ready(Ok(was_live))
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        let restore = || self.0.try_restore(log, &known.admissions);
        let added = self.0.with_room(std::slice::from_ref(log), restore);
        let imposed = known.ban.as_ref().map_or(Ok(()), |ban| {
            let there_us = ban.seen_there.map(micros);
            self.impose_seen(log, ban.remaining, &ban.reason, there_us)
        });
        StoreFuture::ready(imposed.and(added).map(Restored::added))
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
