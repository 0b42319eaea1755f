//! [`Entries`]: the entries of a log, oldest first.

use std::ops::Deref;

use smallvec::SmallVec;
use uuid::Uuid;

/// An admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_us: u64,
    pub(crate) id: Uuid,
}

/// A queue of entries, in one piece of memory. One entry needs no allocation: most keys of a crowd have only one.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    /// The first ones are no longer part of the queue. They leave the memory when they are as many as the others,
    /// so that a removal does not move all others.
    removed: u32,
    entries: SmallVec<[Entry; 1]>,
}

impl Entries {
    pub(super) const fn new() -> Self {
        Self { removed: 0, entries: SmallVec::new_const() }
    }

    /// Inserts an entry before an index. Few logs ever hold more than `limit` entries, so it caps the growth.
    pub(super) fn insert(&mut self, index: usize, entry: Entry, limit: usize) {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            self.entries.reserve_exact(grown(length, limit) - length);
        }
        self.entries.insert(self.removed as usize + index, entry);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, index: usize) {
        self.entries.remove(self.removed as usize + index);
    }

    /// Removes the first entries, in constant time on average.
    pub(super) fn remove_first(&mut self, count: usize) {
        let all = self.removed as usize + count;
        match u32::try_from(all) {
            Ok(all) if 2 * (all as usize) < self.entries.len() => self.removed = all,
            _ => {
                self.removed = 0;
                self.entries.drain(..all);
                // A burst under a high limit must not keep its memory for ever.
                if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4
                {
                    self.entries.shrink_to_fit();
                }
            }
        }
    }
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.entries[self.removed as usize..]
    }
}

/// Returns how many of the first entries have a property that no later entry has.
///
/// Usually few do. So the search begins at the front, and takes time proportional to the logarithm of
/// their number.
pub(super) fn count_first(entries: &[Entry], has: impl Fn(&Entry) -> bool) -> usize {
    match entries {
        [first, ..] if has(first) => {}
        _ => return 0,
    }
    let mut end = 1;
    while entries.get(end).is_some_and(&has) {
        end *= 2;
    }
    entries[..end.min(entries.len())].partition_point(has)
}

/// Returns the capacity of a memory that has `length` entries and gets one more.
fn grown(length: usize, limit: usize) -> usize {
    let wanted = length + 1;
    if wanted <= limit {
        (2 * length).clamp(wanted, limit)
    } else {
        wanted.max(length + length / 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert { newer: usize },
        Remove { newer: usize },
        RemoveFirst(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..3_usize).prop_map(|newer| Step::Insert { newer }),
            1 => (1..9_usize).prop_map(|newer| Step::Remove { newer }),
            4 => (0..5_usize).prop_map(Step::RemoveFirst),
            1 => Just(Step::RemoveFirst(usize::MAX)),
        ]
    }

    proptest! {
        #[test]
        fn entries_are_those_of_a_vector(steps in prop::collection::vec(step(), 0..200)) {
            let (mut entries, mut model) = (Entries::new(), Vec::new());
            for (id, step) in steps.into_iter().enumerate() {
                let length = model.len();
                match step {
                    Step::Insert { newer } => {
                        let index = length.saturating_sub(newer);
                        let entry = Entry { at_us: 0, id: Uuid::from_u128(id as u128) };
                        entries.insert(index, entry, 5);
                        model.insert(index, entry);
                    }
                    Step::Remove { newer } if length > 0 => {
                        let index = length.saturating_sub(newer);
                        entries.remove(index);
                        model.remove(index);
                    }
                    Step::Remove { .. } => {}
                    Step::RemoveFirst(count) => {
                        let count = count.min(length);
                        entries.remove_first(count);
                        model.drain(..count);
                    }
                }
                prop_assert_eq!(&entries[..], &model[..]);
            }
        }

        #[test]
        fn search_from_the_front_finds_the_boundary(length in 0..70_usize, old in 0..70_usize) {
            let entry = |at_us| Entry { at_us, id: Uuid::nil() };
            let entries: Vec<Entry> = (0..length as u64).map(entry).collect();
            let counted = count_first(&entries, |entry| entry.at_us < old as u64);
            prop_assert_eq!(counted, old.min(length));
        }
    }

    #[test]
    fn steady_log_neither_grows_nor_moves_often() {
        let entry = Entry { at_us: 0, id: Uuid::nil() };
        let (mut entries, mut moves) = (Entries::new(), 0);
        (0..100).for_each(|index| entries.insert(index, entry, 100));
        for _ in 0..10_000 {
            entries.remove_first(1);
            moves += u32::from(entries.removed == 0);
            entries.insert(99, entry, 100);
        }
        assert_eq!(entries.len(), 100);
        assert!(entries.entries.capacity() <= 3 * 100, "{}", entries.entries.capacity());
        assert!((1..=200).contains(&moves), "{moves} moves");
    }

    #[test]
    fn memory_is_freed_after_a_burst() {
        let entry = Entry { at_us: 0, id: Uuid::nil() };
        let after = |length, left| {
            let mut entries = Entries::new();
            (0..length).for_each(|index| entries.insert(index, entry, length));
            entries.remove_first(length - left);
            entries.entries.capacity()
        };
        assert_eq!(after(100, 24), 24, "less than a quarter is left");
        assert_eq!(after(100, 25), 100);
        assert_eq!(after(32, 1), 32, "a small log keeps its memory");
    }

    #[test]
    fn few_entries_take_little_memory() {
        assert_eq!(size_of::<Entries>(), 40);
        let mut entries = Entries::new();
        for capacity in [1, 2, 4, 4, 5] {
            entries.insert(entries.len(), Entry { at_us: 0, id: Uuid::nil() }, 5);
            assert_eq!(entries.entries.capacity(), capacity);
        }
    }
}
