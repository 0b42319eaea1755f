//! [`DenyCache`]: answers for a store while it would only deny.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ahash::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::verdict::Rollback;
use super::{
    BanState, Check, KnownLog, Partition, QuotaState, Restored, Store, StoreFuture, Struck, Verdict,
};
use crate::policy::Policy;
use crate::quota::Quota;
use crate::window::micros;

/// How many denials are remembered unless told otherwise.
const DEFAULT_CAPACITY: usize = 65_536;
/// How long a denial is believed unless told otherwise: a place can become free by more than time,
/// and by what other processes do.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);
/// At which part of its age a denial is renewed, so that the requests of a busy key do not all come
/// to the store at once when it is over.
const RENEWED_AT: f64 = 0.75;
/// How many counters tell whether a window was changed while an answer was under way. Windows
/// that share one merely forget a denial too many.
const CHANGE_COUNTERS: usize = 1024;

/// Remembers denials in this process, and repeats them without asking the store again.
///
/// After a denial, the log has no room before a certain instant. Until then, and for a second at the
/// most, the same request is denied from memory. [`RedisStore`](super::RedisStore) has one built in.
///
/// ## Behavior
///
/// - A denial is believed until the instant before which time alone makes no room, and for a second
///   at the most: a reset, a cancelled request or a lifted ban in another process frees a place too,
///   see [`DenyCache::max_age`]. The instant is measured from before the check was sent, on the
///   monotonic clock, so that time never frees a place that the cache denies.
/// - A key that goes on being denied costs the store about one check a second, however many requests
///   it sends: one of them renews the denial before it is over.
/// - Never tells a wait that is too short for the windows it remembers: what is told counts from
///   when the answer arrived.
/// - A denial is forgotten when its policy is replaced, and when the key is reset or a request of
///   it admitted, cancelled, restored or rolled back through a clone of this store.
/// - Of a request under several policies, each full window is remembered by itself. The answer
///   from memory knows of those, and only those: it does not name another that has filled since.
/// - Requests of a weight other than 1 are always put to the store.
/// - Bounded: at its capacity it forgets what was used least, which costs the store a question.
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
        Self { store, denials: Arc::new(Denials::new(DEFAULT_CAPACITY)), max_age: DEFAULT_MAX_AGE }
    }

    /// Sets how many denials are remembered. Defaults to 65,536.
    #[must_use]
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.denials = Arc::new(Denials::new(capacity));
        self
    }

    /// Sets how long a denial is believed at the most.
    ///
    /// Defaults to one second. A longer age costs the store fewer checks, and lets a reset, a
    /// cancellation or a lifted ban in another process go unnoticed for as long. Zero remembers
    /// nothing.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        // What a heavier request waits for may change when a lighter one is admitted, and a repeated
        // one may have been admitted before.
        if check.cost != 1 || check.repeated {
            let (denials, asked) = (self.denials.clone(), check.clone());
            let notice = move |verdict: &Verdict| denials.notice(&asked.partitions, verdict);
            return self.store.admit(check).inspect(notice);
        }
        let sent = Instant::now();
        if let Some(verdict) = self.denials.answer(check, sent) {
            return StoreFuture::ready(Ok(verdict));
        }
        let changes: SmallVec<[u64; 2]> =
            check.partitions.iter().map(|window| self.denials.changes(window)).collect();
        let (denials, max_age) = (self.denials.clone(), self.max_age);
        let asked = check.clone();
        self.store.admit(check).inspect(move |verdict| {
            if !verdict.admitted {
                denials.remember(&asked.partitions, verdict, sent, max_age, &changes);
            }
            denials.notice(&asked.partitions, verdict);
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        self.store.peek(check)
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let changed = Changed::new(&self.denials, &check.partitions);
        self.store.cancel(check).inspect(move |_| drop(changed))
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        let changed = Changed::new(&self.denials, std::slice::from_ref(log));
        self.store.restore(log, known).inspect(move |_| drop(changed))
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let changed = Changed::new(&self.denials, partitions);
        self.store.reset(partitions).inspect(move |()| drop(changed))
    }
}

impl<S: fmt::Debug> fmt::Debug for DenyCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenyCache")
            .field("store", &self.store)
            .field("denials", &self.denials.cache.len())
            .field("max_age", &self.max_age)
            .finish()
    }
}

/// The denials by window.
struct Denials {
    cache: Cache<Partition, Arc<Denial>, UnitWeighter, RandomState>,
    hasher: RandomState,
    changes: Box<[AtomicU64]>,
}

/// What the store said about one window.
struct Denial {
    /// By what it was decided: it may have been replaced since.
    policy: Arc<Policy>,
    at_us: Option<u64>,
    states: SmallVec<[QuotaState; 2]>,
    /// How long the key is banned.
    ban_us: u64,
    /// Until when it is believed.
    until: Instant,
    /// From when on one request is put to the store to renew it, for the store will deny longer.
    renew: Option<Instant>,
    is_renewed: AtomicBool,
    received: Instant,
}

impl Denial {
    /// Tells whether the caller is the one that is to ask the store again.
    fn is_to_be_renewed(&self, now: Instant) -> bool {
        self.renew.is_some_and(|renew| renew <= now)
            && !self.is_renewed.swap(true, Ordering::Relaxed)
    }
}

impl Denials {
    fn new(capacity: usize) -> Self {
        let hasher = RandomState::new();
        Self {
            cache: Cache::with(
                capacity,
                capacity as u64,
                UnitWeighter,
                hasher.clone(),
                DefaultLifecycle::default(),
            ),
            hasher,
            changes: (0..CHANGE_COUNTERS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns how often windows that count with this one were changed.
    fn changes(&self, partition: &Partition) -> u64 {
        self.change_counter(partition).load(Ordering::SeqCst)
    }

    fn change_counter(&self, partition: &Partition) -> &AtomicU64 {
        &self.changes[self.hasher.hash_one(partition) as usize % CHANGE_COUNTERS]
    }

    /// Denies if it is certain that the store would.
    fn answer(&self, check: &Check, now: Instant) -> Option<Verdict> {
        let mut known = SmallVec::<[Option<Arc<Denial>>; 1]>::new();
        for partition in &check.partitions {
            let holds = |denial: &Arc<Denial>| {
                denial.until > now
                    && (denial.at_us.is_some() || !check.wants_stamp)
                    && denial.policy == partition.policy
            };
            let denial = self.cache.get(partition);
            if denial.as_ref().is_some_and(|denial| denial.policy != partition.policy) {
                // Under another policy the log may change, and this one may come back.
                self.cache.remove(partition);
            }
            let denial = denial.filter(holds);
            if denial.as_ref().is_some_and(|denial| denial.is_to_be_renewed(now)) {
                return None;
            }
            known.push(denial);
        }
        if known.iter().all(Option::is_none) {
            return None;
        }
        let mut verdict = Verdict::new(false, None, SmallVec::new());
        verdict.remembered = true;
        for (place, (partition, denial)) in check.partitions.iter().zip(known).enumerate() {
            let Some(denial) = denial else {
                let unknown =
                    |quota: Quota| QuotaState { remaining: quota.limit(), ..QuotaState::default() };
                verdict.states.extend(partition.policy.judged().map(unknown));
                continue;
            };
            let elapsed_us = micros(now.saturating_duration_since(denial.received));
            let ban_us = denial.ban_us.saturating_sub(elapsed_us);
            if ban_us > 0 {
                verdict.bans.push(BanState::new(place, ban_us, Struck::No));
            }
            verdict.at_us = denial.at_us.map(|at_us| at_us + elapsed_us);
            for state in &denial.states {
                verdict.states.push(QuotaState {
                    remaining: state.remaining,
                    wait_us: state.wait_us.saturating_sub(elapsed_us),
                    reset_us: state.reset_us.saturating_sub(elapsed_us),
                });
            }
        }
        Some(verdict)
    }

    fn remember(
        &self,
        partitions: &[Partition],
        verdict: &Verdict,
        sent: Instant,
        max_age: Duration,
        changes: &[u64],
    ) {
        let received = Instant::now();
        let mut states = &verdict.states[..];
        for (place, (partition, changes)) in partitions.iter().zip(changes).enumerate() {
            let (own, rest) = states.split_at(partition.policy.judged().len());
            states = rest;
            let enforced = &own[..partition.policy.quotas().len()];
            let wait_us = enforced.iter().map(|state| state.wait_us).max().unwrap_or(0);
            let ban = verdict.bans.iter().find(|ban| ban.partition == place);
            let ban_us = ban.map_or(0, |ban| ban.wait_us);
            let wait = Duration::from_micros(wait_us.max(ban_us));
            let believed = wait.min(max_age);
            if believed.is_zero() {
                continue;
            }
            let denial = Denial {
                policy: partition.policy.clone(),
                at_us: verdict.at_us,
                states: own.into(),
                ban_us,
                until: sent + believed,
                renew: (believed < wait).then(|| sent + believed.mul_f64(RENEWED_AT)),
                is_renewed: AtomicBool::new(false),
                received,
            };
            self.cache.insert(partition.clone(), Arc::new(denial));
            // A reset while the answer was under way has found nothing to drop.
            if self.changes(partition) != *changes {
                self.cache.remove(partition);
            }
        }
    }

    /// Forgets what a decision has changed: an admission takes a place later than those that a
    /// denial before it waited for, and a rollback gives one back.
    fn notice(&self, partitions: &[Partition], verdict: &Verdict) {
        if verdict.rollback != Rollback::NotNeeded {
            partitions.iter().for_each(|partition| self.forget(partition));
        } else if verdict.admitted {
            partitions.iter().for_each(|partition| drop(self.cache.remove(partition)));
        }
    }

    fn forget(&self, partition: &Partition) {
        self.change_counter(partition).fetch_add(1, Ordering::SeqCst);
        self.cache.remove(partition);
    }
}

/// Forgets the denials of windows that are being changed: now, and again when the change is made
/// or given up, for a denial from before it may have arrived in between.
struct Changed {
    denials: Arc<Denials>,
    partitions: SmallVec<[Partition; 1]>,
}

impl Changed {
    fn new(denials: &Arc<Denials>, partitions: &[Partition]) -> Self {
        partitions.iter().for_each(|partition| denials.forget(partition));
        Self { denials: denials.clone(), partitions: partitions.into() }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.partitions.iter().for_each(|partition| self.denials.forget(partition));
    }
}
