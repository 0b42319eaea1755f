//! [`TopOffenders`]: the keys that are denied most.

mod space_saving;

use std::cmp::Reverse;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use self::space_saving::{Counter, SpaceSaving};
use crate::key::Key;
use crate::window::{Decision, LogId};

/// How many policies are told apart. There are more only if a program makes policies without end.
const MOST_POLICIES: usize = 64;

/// Counts which keys are denied most, by policy, in a bounded memory.
///
/// Clones share the counts. Give a clone to each layer and limiter whose denials it should count, with
/// [`SlidingWindowLayer::top_offenders`](crate::SlidingWindowLayer::top_offenders) and
/// [`Limiter::top_offenders`](crate::Limiter::top_offenders). It counts what this process denies, under
/// each policy that denies it, because its log is full or its key banned. A layer in shadow mode counts
/// what it would deny. [`Limiter::until_admitted`](crate::Limiter::until_admitted) counts nothing: its
/// callers wait as they should.
///
/// Keys often identify people: no log line, no metric and no [`Debug`](fmt::Debug) text contains them.
/// [`TopOffenders::of`] and [`TopOffenders::all`] are the only way to read them.
///
/// The counts are those of the Space-Saving algorithm. For each policy it keeps as many keys as its
/// capacity, each with at most 128 bytes. A key that has more than `1 / capacity` of all denials under the
/// policy is among them. A key that is new takes the place of the one with the lowest count, and its count
/// begins there: [`Offender::overcount`] says how much of a count may be that of earlier keys. Policies of
/// the same name are counted together. If there are more than 64 names, the further ones are not counted.
///
/// A denial of a kept key costs about 300 instructions more, 1.6 % of a request that axum denies, and no
/// allocation.
///
/// ```
/// use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, TopOffenders};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
/// let offenders = TopOffenders::new(100);
/// let policy = Policy::new("user").quota(Quota::per_minute(5));
/// let limiter = Limiter::new(policy, MemoryStore::new()).top_offenders(&offenders);
///
/// for _ in 0..1000 {
///     let _ = limiter.check("mallory").await?;
/// }
/// let worst = &offenders.of("user")[0];
/// assert_eq!(worst.key().as_bytes(), b"mallory");
/// assert_eq!((worst.denials(), worst.overcount()), (995, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TopOffenders(Arc<Shared>);

struct Shared {
    capacity: usize,
    /// One lock for all policies. It is held for a look-up: the store has locked the log for longer.
    policies: Mutex<Vec<PolicyCounts>>,
}

struct PolicyCounts {
    policy: Box<str>,
    denials: SpaceSaving<Key, Instant>,
}

/// A key that is denied often, see [`TopOffenders`].
#[derive(Clone, Debug)]
pub struct Offender {
    policy: Box<str>,
    key: Key,
    denials: u64,
    overcount: u64,
    since: SystemTime,
}

impl Offender {
    fn new(policy: &str, counter: Counter<Key, Instant>) -> Self {
        let Counter { key, count, overcount, since } = counter;
        let since = SystemTime::now().checked_sub(since.elapsed());
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        Self { policy: policy.into(), key, denials: count, overcount, since }
    }

    /// Returns the name of the policy that denies the key.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the key.
    ///
    /// If a rule of a layer has a policy without a name, the key may have the number of the rule in front,
    /// see [`SlidingWindowLayer::rule`](crate::SlidingWindowLayer::rule).
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns how often the key was denied. It is never too low, and too high by at most
    /// [`Offender::overcount`].
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.denials
    }

    /// Returns how many of the denials may be those of earlier keys: none as long as the policy has
    /// denied no more keys than are kept. The others were counted since [`Offender::since`].
    #[must_use]
    pub fn overcount(&self) -> u64 {
        self.overcount
    }

    /// Returns when the key was first denied since it is among those that are kept.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.since
    }
}

impl TopOffenders {
    /// Keeps so many keys for each policy, but at least one. A hundred keys take up to 50 kB.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Shared { capacity: capacity.max(1), policies: Mutex::default() }))
    }

    /// Returns the offenders of a policy, the surest first: those with the most denials besides the
    /// [overcount](Offender::overcount).
    #[must_use]
    pub fn of(&self, policy: &str) -> Vec<Offender> {
        self.offenders(|it| *it.policy == *policy)
    }

    /// Returns the offenders of all policies, the surest first.
    #[must_use]
    pub fn all(&self) -> Vec<Offender> {
        self.offenders(|_| true)
    }

    /// Forgets all counts, so that those of the past do not hide those of the present.
    pub fn clear(&self) {
        let counts = mem::take(&mut *self.lock());
        drop(counts);
    }

    /// Counts the keys that deny a request.
    pub(crate) fn record(&self, decision: &Decision) {
        if let Decision::Denied(denied) = decision {
            for (log, outcome) in denied.usage().logs() {
                if outcome.denies() {
                    self.count(log);
                }
            }
        }
    }

    /// Counts a denial by a log.
    pub(crate) fn count(&self, log: &LogId) {
        let (name, mut policies) = (log.policy.name(), self.lock());
        let counts = match policies.iter().position(|it| *it.policy == *name) {
            Some(at) => &mut policies[at],
            None if policies.len() == MOST_POLICIES => return,
            None => self.first_of(name, &mut policies),
        };
        counts.denials.count(&log.key, Instant::now);
    }

    fn first_of<'a>(
        &self,
        name: &str,
        policies: &'a mut Vec<PolicyCounts>,
    ) -> &'a mut PolicyCounts {
        let denials = SpaceSaving::new(self.0.capacity);
        policies.push(PolicyCounts { policy: name.into(), denials });
        let last = policies.len() - 1;
        &mut policies[last]
    }

    /// Copies the counts of one policy after the other, so that no denial waits for more than one.
    fn offenders(&self, is_wanted: impl Fn(&PolicyCounts) -> bool) -> Vec<Offender> {
        let mut offenders = Vec::new();
        for at in 0..MOST_POLICIES {
            let policies = self.lock();
            let Some(counts) = policies.get(at) else { break };
            if is_wanted(counts) {
                let (policy, counters) =
                    (counts.policy.clone(), counts.denials.counters().to_vec());
                drop(policies);
                offenders.extend(counters.into_iter().map(|it| Offender::new(&policy, it)));
            }
        }
        offenders.sort_by_key(|it| Reverse((it.denials - it.overcount, it.denials)));
        offenders
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PolicyCounts>> {
        // No user code runs under the lock, so poisoned counts are consistent.
        self.0.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TopOffenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.lock();
        let kept = policies.iter().map(|it| (&it.policy, it.denials.counters().len()));
        f.debug_map().entries(kept).finish()
    }
}
