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

use super::{LogSnapshot, Restored, Store, StoreFuture};
use crate::policy::Policy;
use crate::time::micros;
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, Rollback, Strike};

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
/// - Requests of a cost other than 1 are always put to the store.
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
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        // What a heavier request waits for may change when a lighter one is admitted, and a repeated
        // one may have been admitted before.
        if check.cost != 1 || check.repeated {
            let (denials, asked) = (self.denials.clone(), check.clone());
            let notice = move |outcome: &Outcome| denials.notice(&asked.logs, outcome);
            return self.store.admit(check).inspect(notice);
        }
        let sent = Instant::now();
        if let Some(outcome) = self.denials.answer(check, sent) {
            return StoreFuture::ready(Ok(outcome));
        }
        let changes: SmallVec<[u64; 2]> =
            check.logs.iter().map(|window| self.denials.changes(window)).collect();
        let (denials, max_age) = (self.denials.clone(), self.max_age);
        let asked = check.clone();
        self.store.admit(check).inspect(move |outcome| {
            if !outcome.admitted {
                denials.remember(&asked.logs, outcome, sent, max_age, &changes);
            }
            denials.notice(&asked.logs, outcome);
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        self.store.peek(check)
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let changed = Changed::new(&self.denials, &check.logs);
        self.store.cancel(check).inspect(move |_| drop(changed))
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        let changed = Changed::new(&self.denials, std::slice::from_ref(log));
        self.store.restore(log, known).inspect(move |_| drop(changed))
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let changed = Changed::new(&self.denials, logs);
        self.store.reset(logs).inspect(move |()| drop(changed))
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
    cache: Cache<LogId, Arc<Denial>, UnitWeighter, RandomState>,
    hasher: RandomState,
    changes: Box<[AtomicU64]>,
}

/// What the store said of one log.
struct Denial {
    /// The policy it was decided by, which may have been replaced since.
    policy: Arc<Policy>,
    timestamp: Option<Duration>,
    outcome: LogOutcome,
    /// Until when it is believed.
    until: Instant,
    /// From when on one request is sent to the store to renew it, because the store will deny for
    /// longer.
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

    /// Returns what the store said, as much later as has passed since.
    fn outcome(&self, elapsed_us: u64) -> LogOutcome {
        let mut outcome = self.outcome.clone();
        for state in outcome.states_mut() {
            *state = state.after(elapsed_us);
        }
        let remaining_us = self.outcome.ban().remaining_us.saturating_sub(elapsed_us);
        outcome.set_ban(BanState { remaining_us, strike: Strike::None });
        outcome
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
    fn changes(&self, log: &LogId) -> u64 {
        self.change_counter(log).load(Ordering::SeqCst)
    }

    fn change_counter(&self, log: &LogId) -> &AtomicU64 {
        &self.changes[self.hasher.hash_one(log) as usize % CHANGE_COUNTERS]
    }

    /// Denies if it is certain that the store would.
    fn answer(&self, check: &Check, now: Instant) -> Option<Outcome> {
        let mut known = SmallVec::<[Option<Arc<Denial>>; 1]>::new();
        for log in &check.logs {
            let holds = |denial: &Arc<Denial>| {
                denial.until > now
                    && (denial.timestamp.is_some() || !check.wants_timestamp)
                    && denial.policy == log.policy
            };
            let denial = self.cache.get(log);
            if denial.as_ref().is_some_and(|denial| denial.policy != log.policy) {
                // Under another policy the log may change, and this one may come back.
                self.cache.remove(log);
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
        let mut timestamp = None;
        let logs = check.logs.iter().zip(known).map(|(log, denial)| {
            let Some(denial) = denial else { return LogOutcome::empty(&log.policy) };
            let elapsed = now.saturating_duration_since(denial.received);
            timestamp = denial.timestamp.map(|timestamp| timestamp + elapsed);
            denial.outcome(micros(elapsed))
        });
        let mut outcome = Outcome::new(false, logs);
        (outcome.timestamp, outcome.from_cache) = (timestamp, true);
        Some(outcome)
    }

    fn remember(
        &self,
        logs: &[LogId],
        outcome: &Outcome,
        sent: Instant,
        max_age: Duration,
        changes: &[u64],
    ) {
        let received = Instant::now();
        for ((log, of_log), changes) in logs.iter().zip(outcome.logs()).zip(changes) {
            let wait = Duration::from_micros(of_log.wait_us());
            let believed = wait.min(max_age);
            if believed.is_zero() {
                continue;
            }
            let denial = Denial {
                policy: log.policy.clone(),
                timestamp: outcome.timestamp,
                outcome: of_log.clone(),
                until: sent + believed,
                renew: (believed < wait).then(|| sent + believed.mul_f64(RENEWED_AT)),
                is_renewed: AtomicBool::new(false),
                received,
            };
            self.cache.insert(log.clone(), Arc::new(denial));
            // A reset while the reply was under way has found nothing to drop.
            if self.changes(log) != *changes {
                self.cache.remove(log);
            }
        }
    }

    /// Forgets what a decision has changed: an admission takes a place later than those that a
    /// denial before it waited for, and a rollback gives one back.
    fn notice(&self, logs: &[LogId], outcome: &Outcome) {
        if outcome.rollback != Rollback::NotNeeded {
            logs.iter().for_each(|log| self.forget(log));
        } else if outcome.admitted {
            logs.iter().for_each(|log| drop(self.cache.remove(log)));
        }
    }

    fn forget(&self, log: &LogId) {
        self.change_counter(log).fetch_add(1, Ordering::SeqCst);
        self.cache.remove(log);
    }
}

/// Forgets the denials of windows that are being changed: now, and again when the change is made
/// or given up, for a denial from before it may have arrived in between.
struct Changed {
    denials: Arc<Denials>,
    logs: SmallVec<[LogId; 1]>,
}

impl Changed {
    fn new(denials: &Arc<Denials>, logs: &[LogId]) -> Self {
        logs.iter().for_each(|log| denials.forget(log));
        Self { denials: denials.clone(), logs: logs.into() }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.logs.iter().for_each(|log| self.denials.forget(log));
    }
}
