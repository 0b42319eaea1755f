//! [`Entry`] and [`Costs`]: the entries of a log, and what those of a budget cost, in the order of the entries.

use std::collections::VecDeque;

use uuid::Uuid;

/// An admitted request, or a strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_us: u64,
    pub(crate) id: Uuid,
}

/// What an entry of a budget takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// What it took when it was admitted.
    pub(crate) initial: u32,
    /// What it takes since it was settled.
    pub(crate) now: u32,
}

impl Cost {
    pub(crate) const fn of(cost: u32) -> Self {
        Self { initial: cost, now: cost }
    }
}

/// Costs that can be summed and searched in logarithmic time.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// Each cost, and the sum of all costs ever up to and including it.
    costs: VecDeque<(Cost, u64)>,
    /// The sum of those that were removed from the front.
    removed: u64,
}

impl Costs {
    pub(super) fn get(&self, index: usize) -> Cost {
        self.costs[index].0
    }

    /// Returns the sum of all costs from an index on.
    pub(super) fn from(&self, index: usize) -> u64 {
        self.until(self.costs.len()) - self.until(index)
    }

    /// Returns the index of the cost with which the sum of the first ones becomes `wanted` or more.
    pub(super) fn reach(&self, wanted: u64) -> usize {
        self.costs.partition_point(|(_, sum)| *sum < self.removed + wanted)
    }

    pub(super) fn set(&mut self, index: usize, cost: u32) {
        let before = std::mem::replace(&mut self.costs[index].0.now, cost);
        for (_, sum) in self.costs.range_mut(index..) {
            *sum = *sum + u64::from(cost) - u64::from(before);
        }
    }

    /// Inserts a cost before an index: in constant time at the end, where nearly all are added.
    pub(super) fn insert(&mut self, index: usize, cost: Cost) {
        let nothing = Cost { now: 0, ..cost };
        make_room(&mut self.costs);
        self.costs.insert(index, (nothing, self.until(index)));
        self.set(index, cost.now);
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.set(index, 0);
        self.costs.remove(index);
    }

    /// Removes the first costs.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.removed = self.until(count);
        remove_first(&mut self.costs, count);
    }

    /// Returns the sum of all costs ever before an index.
    fn until(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.removed, |last| self.costs[last].1)
    }
}

/// Grows by half, for there are many logs, and most are short.
pub(super) fn make_room<T>(queue: &mut VecDeque<T>) {
    if queue.len() == queue.capacity() {
        queue.reserve_exact(queue.len().div_ceil(2).max(1));
    }
}

/// A burst under a high limit must not keep its memory for ever.
pub(super) fn remove_first<T>(queue: &mut VecDeque<T>, count: usize) {
    queue.drain(..count);
    if queue.capacity() > 32 && queue.len() < queue.capacity() / 4 {
        queue.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_small_and_is_freed_after_a_burst() {
        let after = |length: usize, left| {
            let mut queue = VecDeque::new();
            for entry in 0..length {
                make_room(&mut queue);
                queue.push_back(entry);
            }
            remove_first(&mut queue, length - left);
            queue.capacity()
        };
        assert_eq!([1, 2, 3, 4, 5].map(|length| after(length, length)), [1, 2, 3, 5, 5]);
        assert_eq!(after(100, 24), 24, "less than a quarter is left");
        assert!(after(100, 40) >= 100);
        assert_eq!(after(27, 1), 27, "a small log keeps its memory");
    }

    #[test]
    fn sums_follow_what_is_inserted_between() {
        let mut costs = Costs::default();
        for (index, cost) in [(0, 3), (1, 5), (1, u32::MAX)] {
            costs.insert(index, Cost::of(cost));
        }
        let most = u64::from(u32::MAX);
        assert_eq!([0, 1, 2, 3].map(|index| costs.from(index)), [most + 8, most + 5, 5, 0]);
    }
}
