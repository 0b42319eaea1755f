//! [`SpaceSaving`]: the most frequent keys of a stream, in bounded memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

use ahash::RandomState;

/// The Space-Saving algorithm of Metwally, Agrawal and El Abbadi (2005).
///
/// It keeps `capacity` keys. A key that is not kept replaces the one with the lowest count, and takes
/// over that count as its overcount. After `n` counts:
///
/// - For each kept key, `count - overcount <= true count <= count`.
/// - Each key with more than `n / capacity` counts is kept.
///
/// To count a kept key takes one look-up. Any other key takes O(log `capacity`), amortised.
#[derive(Debug)]
pub(super) struct SpaceSaving<K, T> {
    capacity: usize,
    counters: Vec<Counter<K, T>>,
    index: HashMap<K, usize, RandomState>,
    /// The counters, by a count that they have had. Only the top of the heap is brought up to date, so
    /// that a further count of a kept key does not touch the heap.
    lowest: BinaryHeap<Reverse<(u64, usize)>>,
}

/// A kept key and its count.
#[derive(Clone, Debug)]
pub(super) struct Counter<K, T> {
    pub(super) key: K,
    pub(super) count: u64,
    pub(super) overcount: u64,
    /// When the key was first counted since it is kept.
    pub(super) since: T,
}

impl<K: Clone + Eq + Hash, T> SpaceSaving<K, T> {
    pub(super) fn new(capacity: usize) -> Self {
        let (index, lowest) = (HashMap::default(), BinaryHeap::new());
        Self { capacity, counters: Vec::new(), index, lowest }
    }

    /// Returns the kept keys, in no order.
    pub(super) fn counters(&self) -> &[Counter<K, T>] {
        &self.counters
    }

    /// Counts a key. `now` is called only if the key is not kept yet.
    pub(super) fn count(&mut self, key: &K, now: impl FnOnce() -> T) {
        match self.index.get(key) {
            Some(&at) => self.counters[at].count += 1,
            None => self.keep(key, now()),
        }
    }

    fn keep(&mut self, key: &K, since: T) {
        let at = self.counters.len();
        if at < self.capacity {
            self.counters.push(Counter { key: key.clone(), count: 1, overcount: 0, since });
            self.lowest.push(Reverse((1, at)));
            self.index.insert(key.clone(), at);
            return;
        }
        while let Some(mut lowest) = self.lowest.peek_mut() {
            let Reverse((known, at)) = *lowest;
            let counter = &mut self.counters[at];
            let overcount = counter.count;
            if known < overcount {
                *lowest = Reverse((overcount, at));
                continue;
            }
            *lowest = Reverse((overcount + 1, at));
            self.index.remove(&counter.key);
            *counter = Counter { key: key.clone(), count: overcount + 1, overcount, since };
            self.index.insert(key.clone(), at);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Counts a stream, and compares the result with an exact count after each key.
    fn compare(capacity: usize, stream: &[u8]) -> Result<(), TestCaseError> {
        let (mut sketch, mut exact) = (SpaceSaving::new(capacity), BTreeMap::<u8, u64>::new());
        for (n, key) in (1_u64..).zip(stream) {
            sketch.count(key, || n);
            *exact.entry(*key).or_default() += 1;

            let counters = sketch.counters();
            prop_assert_eq!(counters.len(), exact.len().min(capacity));
            prop_assert_eq!(counters.iter().map(|it| it.count).sum::<u64>(), n);
            for Counter { key, count, overcount, since } in counters {
                prop_assert!((count - overcount..=*count).contains(&exact[key]));
                let at = usize::try_from(since - 1).unwrap();
                prop_assert_eq!(stream[at], *key, "it is the time of a count of this key");
                let counted_since = stream[at..n as usize].iter().filter(|it| *it == key).count();
                prop_assert_eq!(counted_since as u64, count - overcount);
            }
            for (key, count) in &exact {
                let is_kept = counters.iter().any(|it| it.key == *key);
                prop_assert!(is_kept || *count <= n / capacity as u64, "{} of {}", count, n);
            }
        }
        Ok(())
    }

    /// Keys that are all as frequent, or each half as frequent as the one before.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let skewed = any::<u32>().prop_map(|it| it.trailing_zeros() as u8);
        prop_oneof![vec(0..30_u8, 0..400), vec(skewed, 0..400)]
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
        for key in 0..300_000_u32 {
            sketch.count(&key, || ());
            sketch.count(&(key % 7), || ());
        }
        assert_eq!(sketch.counters.len(), 100);
        for capacity in
            [sketch.counters.capacity(), sketch.index.capacity(), sketch.lowest.capacity()]
        {
            assert!(capacity < 256, "{capacity}");
        }
    }
}
