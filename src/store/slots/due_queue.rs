//! [`DueQueue`]: slots in the order in which they come due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How many runs there are: windows of so many lengths can be in use at once.
const RUNS: usize = 2;

/// When the value of a slot comes due. Packed, so that it takes 12 bytes instead of 16 for each value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
pub(in crate::store) struct Due {
    pub(super) at_us: u64,
    pub(super) slot: u32,
}

/// A priority queue. The one that comes due first is the first.
///
/// Logs of one window come due in the order in which they were made. So nearly every entry goes to the
/// end of a run, which is sorted, and leaves it at the front. To remove the first entry of a heap
/// touches memory all over: with a heap alone, an admission that drops a log takes a fifth more time.
#[derive(Default)]
pub(super) struct DueQueue {
    runs: [VecDeque<Due>; RUNS],
    /// What comes due before the last entry of each run.
    others: BinaryHeap<Reverse<Due>>,
}

impl DueQueue {
    #[inline]
    pub(super) fn push(&mut self, due: Due) {
        let fits = |run: &&mut VecDeque<Due>| run.back().is_none_or(|last| last.at_us <= due.at_us);
        // The longest window fills the first run, so a shorter one gets the next to itself.
        match self.runs.iter_mut().find(fits) {
            Some(run) => run.push_back(due),
            None => self.others.push(Reverse(due)),
        }
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Due> {
        let mut first = self.others.peek().map(|Reverse(due)| *due);
        for due in self.runs.iter().filter_map(VecDeque::front) {
            if first.is_none_or(|first| *due < first) {
                first = Some(*due);
            }
        }
        first
    }

    /// Removes and returns the first entry, if it has come due.
    #[inline]
    pub(super) fn take(&mut self, now_us: u64) -> Option<Due> {
        let first = self.first().filter(|due| due.at_us <= now_us)?;
        match self.runs.iter_mut().find(|run| run.front() == Some(&first)) {
            Some(run) => run.pop_front(),
            None => self.others.pop().map(|Reverse(due)| due),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.runs.iter().map(VecDeque::len).sum::<usize>() + self.others.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.runs.iter().map(VecDeque::capacity).sum::<usize>() + self.others.capacity()
    }
}

impl FromIterator<Due> for DueQueue {
    fn from_iter<I: IntoIterator<Item = Due>>(entries: I) -> Self {
        let mut sorted: Vec<Due> = entries.into_iter().collect();
        sorted.sort_unstable();
        let mut queue = Self::default();
        queue.runs[0] = sorted.into();
        queue
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Nearly sorted, as the entries of a few windows are, and in any order.
        #[test]
        fn entries_leave_in_the_order_of_their_instants(
            steps in prop::collection::vec((0..4_u64, 0..4_u64, any::<bool>()), 0..300),
        ) {
            let (mut queue, mut model, mut now_us) = (DueQueue::default(), BinaryHeap::new(), 0);
            for (slot, (step_us, window, is_removal)) in steps.into_iter().enumerate() {
                if is_removal {
                    let first = model.pop().map(|Reverse(due)| due);
                    prop_assert!(queue.first() == first && queue.take(u64::MAX) == first);
                } else {
                    now_us += step_us;
                    let due = Due { at_us: now_us + 10 * window + 1, slot: slot as u32 };
                    queue.push(due);
                    model.push(Reverse(due));
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let mut rest: DueQueue = model.iter().map(|Reverse(due)| *due).collect();
            while let Some(Reverse(due)) = model.pop() {
                prop_assert!(queue.take(due.at_us - 1).is_none(), "it has not come due");
                prop_assert!(queue.take(due.at_us) == Some(due) && rest.take(due.at_us) == Some(due));
            }
            prop_assert!(queue.first().is_none() && rest.first().is_none());
        }
    }
}
