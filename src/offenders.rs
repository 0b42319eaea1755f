//! [`TopOffenders`]: the keys that are denied most.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;

use crate::key::Key;
use crate::window::{Decision, LogId};

/// Counts which keys are denied most, and by which policy, in a bounded memory.
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
/// The counts are those of the Space-Saving algorithm. It keeps as many keys as its capacity, those of all
/// policies together, each with at most 128 bytes. A key that has more than `1 / capacity` of all denials is
/// among them. A key that is new takes the place of the one with the lowest count, and its count begins
/// there: [`Offender::overcount`] says how much of a count may be that of earlier keys. A policy that denies many
/// keys takes places from the others: give it a `TopOffenders` of its own, or all of them a larger capacity. Policies
/// that share their [logs](crate::Policy#logs) are counted together.
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
pub struct TopOffenders(Arc<Mutex<SpaceSaving>>);

/// The Space-Saving algorithm of Metwally, Agrawal and El Abbadi (2005).
///
/// For each kept key, `count - overcount <= true count <= count`. To count one takes a look-up. Any other key takes
/// O(log `capacity`), amortised.
struct SpaceSaving {
    capacity: usize,
    offenders: Vec<Offender>,
    index: HashMap<LogId, usize, RandomState>,
    /// The offenders, by a count that they have had. Only the top of the heap is brought up to date, so
    /// that a further count of a kept key does not touch the heap.
    lowest: BinaryHeap<Reverse<(u64, usize)>>,
}

/// A key that is denied often, see [`TopOffenders`].
#[derive(Clone, Debug)]
pub struct Offender {
    log: LogId,
    denials: u64,
    overcount: u64,
}

impl Offender {
    /// Returns the name of the policy that denies the key.
    pub fn policy(&self) -> &str {
        self.log.policy.name()
    }

    /// Returns the key.
    ///
    /// If a rule of a layer has a policy without a name, the key may have the number of the rule in front,
    /// see [`SlidingWindowLayer::rule`](crate::SlidingWindowLayer::rule).
    pub fn key(&self) -> &Key {
        &self.log.key
    }

    /// Returns how often the key was denied. It is never too low, and too high by at most
    /// [`Offender::overcount`].
    pub fn denials(&self) -> u64 {
        self.denials
    }

    /// Returns how many of the denials may be those of earlier keys: none as long as no more keys were denied
    /// than are kept.
    pub fn overcount(&self) -> u64 {
        self.overcount
    }
}

impl TopOffenders {
    /// Keeps so many keys of all policies together, but at least one. A hundred keys take up to 50 kB.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(SpaceSaving::new(capacity.max(1)))))
    }

    /// Returns the offenders of a policy, the surest first: those with the most denials besides the
    /// [overcount](Offender::overcount).
    pub fn of(&self, policy: &str) -> Vec<Offender> {
        let mut offenders = self.all();
        offenders.retain(|it| it.policy() == policy);
        offenders
    }

    /// Returns the offenders of all policies, the surest first.
    pub fn all(&self) -> Vec<Offender> {
        let mut offenders = self.lock().offenders.clone();
        offenders.sort_by_key(|it| Reverse((it.denials - it.overcount, it.denials)));
        offenders
    }

    /// Forgets all counts, so that those of the past do not hide those of the present.
    pub fn clear(&self) {
        let mut counts = self.lock();
        let empty = SpaceSaving::new(counts.capacity);
        let old = mem::replace(&mut *counts, empty);
        drop(counts);
        drop(old);
    }

    /// Counts the keys that deny a request.
    pub(crate) fn record(&self, decision: &Decision) {
        if let Decision::Denied(denied) = decision {
            for (log, outcome) in denied.usage().logs() {
                if outcome.denies() {
                    self.lock().count(log);
                }
            }
        }
    }

    /// It is locked for a look-up: the store has locked the log for longer.
    fn lock(&self) -> MutexGuard<'_, SpaceSaving> {
        // No user code runs under the lock, so poisoned counts are consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TopOffenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopOffenders({} keys)", self.lock().offenders.len())
    }
}

impl SpaceSaving {
    fn new(capacity: usize) -> Self {
        let (index, lowest) = (HashMap::default(), BinaryHeap::new());
        Self { capacity, offenders: Vec::new(), index, lowest }
    }

    /// Counts a denial.
    fn count(&mut self, log: &LogId) {
        match self.index.get(log) {
            Some(&at) => self.offenders[at].denials += 1,
            None => self.keep(LogId::new(log.policy.clone(), log.key.clone())),
        }
    }

    fn keep(&mut self, log: LogId) {
        let at = self.offenders.len();
        if at < self.capacity {
            self.offenders.push(Offender { log: log.clone(), denials: 1, overcount: 0 });
            self.lowest.push(Reverse((1, at)));
            self.index.insert(log, at);
            return;
        }
        while let Some(mut lowest) = self.lowest.peek_mut() {
            let Reverse((known, at)) = *lowest;
            let offender = &mut self.offenders[at];
            let overcount = offender.denials;
            if known < overcount {
                *lowest = Reverse((overcount, at));
                continue;
            }
            let denials = overcount + 1;
            *lowest = Reverse((denials, at));
            self.index.remove(&offender.log);
            *offender = Offender { log: log.clone(), denials, overcount };
            self.index.insert(log, at);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Policy;
    use crate::quota::Quota;

    /// Returns the log of a number: one of two policies has it.
    fn log_of(number: u32) -> LogId {
        let policy = Policy::new(["user", "ip"][number as usize % 2]).quota(Quota::per_minute(1));
        LogId::new(policy.into(), number / 2)
    }

    /// Counts a stream, and compares the result with an exact count after each log.
    fn compare(capacity: usize, stream: &[LogId]) -> Result<(), TestCaseError> {
        let (mut sketch, mut exact) = (SpaceSaving::new(capacity), HashMap::<_, u64>::new());
        for (n, log) in (1_u32..).zip(stream) {
            sketch.count(log);
            *exact.entry(log).or_default() += 1;

            let kept = &sketch.offenders;
            prop_assert_eq!(kept.len(), exact.len().min(capacity));
            prop_assert_eq!(kept.iter().map(|it| it.denials).sum::<u64>(), u64::from(n));
            for Offender { log, denials, overcount } in kept {
                prop_assert!((denials - overcount..=*denials).contains(&exact[log]));
            }
            for (log, count) in &exact {
                let is_kept = kept.iter().any(|it| it.log == **log);
                prop_assert!(is_kept || *count <= u64::from(n) / capacity as u64, "{count} of {n}");
            }
        }
        Ok(())
    }

    /// Logs that are all as frequent, or each half as frequent as the one before.
    fn stream() -> impl Strategy<Value = Vec<LogId>> {
        let skewed = any::<u32>().prop_map(|it| log_of(it.trailing_zeros()));
        prop_oneof![vec((0..30_u32).prop_map(log_of), 0..400), vec(skewed, 0..400)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn counts_are_within_bounds(capacity in 1..12_usize, stream in stream()) {
            compare(capacity, &stream)?;
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut sketch = SpaceSaving::new(100);
        for number in 0..100_000 {
            sketch.count(&log_of(number));
            sketch.count(&log_of(number % 7));
        }
        assert_eq!(sketch.offenders.len(), 100);
        for capacity in
            [sketch.offenders.capacity(), sketch.index.capacity(), sketch.lowest.capacity()]
        {
            assert!(capacity < 256, "{capacity}");
        }
    }
}
