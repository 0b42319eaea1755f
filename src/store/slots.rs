//! [`Slots`]: values that are found by their hash, and looked at again when they come due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Index, IndexMut};

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

/// How many parts a map of values has, each with its own [`Slots`] under its own lock.
pub(super) const SHARDS: usize = 64;

/// Returns the shard of a hash. The table of the shard uses the low and the top bits, so the shard is
/// chosen by bits between them.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// A value that knows its hash.
pub(super) trait Hashed {
    fn hash(&self, hasher: &RandomState) -> u64;
}

/// Values in numbered slots. A value keeps its slot until it is removed.
///
/// Each value comes due at an instant. The owner then removes it or sets a later instant. So a value
/// that is used again and again costs nothing: its owner corrects the instant only when it has come.
pub(super) struct Slots<T> {
    by_hash: HashTable<u32>,
    slots: Slab<Slot<T>>,
    /// An entry for each value, and stale ones: the slot is empty or comes due at another instant.
    due: BinaryHeap<Reverse<Due>>,
}

/// When the value of a slot comes due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    at_us: u64,
    slot: u32,
}

/// The place of a value.
pub(super) struct Slot<T> {
    due_us: u64,
    value: T,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { by_hash: HashTable::new(), slots: Slab::new(), due: BinaryHeap::new() }
    }
}

impl<T: Hashed> Slots<T> {
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        self.by_hash.find(hash, |slot| is_it(&self[*slot])).copied()
    }

    /// Inserts a value that is not there yet, and returns its slot.
    pub(super) fn insert(&mut self, hash: u64, value: T, due_us: u64, hasher: &RandomState) -> u32 {
        // The capacities of all maps fit into 32 bits.
        let slot = self.slots.insert(Slot { due_us, value }) as u32;
        let slots = &self.slots;
        let hash_of = |slot: &u32| slots[*slot as usize].value.hash(hasher);
        self.by_hash.insert_unique(hash, slot, hash_of);
        self.due.push(Reverse(Due { at_us: due_us, slot }));
        slot
    }

    /// Removes the value of a slot. The slot must not be empty.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) -> T {
        if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        let Slot { value, .. } = self.slots.remove(slot as usize);
        // The entry in the queue may be stale now. Leave out stale entries when most are.
        if self.due.len() > 2 * self.slots.len() + 64 {
            let due = |(slot, it): (usize, &Slot<T>)| {
                Reverse(Due { at_us: it.due_us, slot: slot as u32 })
            };
            self.due = self.slots.iter().map(due).collect();
        }
        value
    }

    /// Returns when the next value comes due, or an earlier instant.
    pub(super) fn next_due_us(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |Reverse(due)| due.at_us)
    }

    /// Returns the slot of a value that has come due. The caller removes the value, or sets when it comes
    /// due again.
    pub(super) fn take_due(&mut self, now_us: u64) -> Option<u32> {
        while let Some(&Reverse(Due { at_us, slot })) = self.due.peek()
            && at_us <= now_us
        {
            self.due.pop();
            if self.slots.get(slot as usize).is_some_and(|it| it.due_us == at_us) {
                return Some(slot);
            }
        }
        None
    }

    /// Returns when a value comes due.
    pub(super) fn due_us(&self, slot: u32) -> u64 {
        self.slots[slot as usize].due_us
    }

    /// Sets when a value comes due.
    pub(super) fn set_due(&mut self, slot: u32, at_us: u64) {
        self.slots[slot as usize].due_us = at_us;
        self.due.push(Reverse(Due { at_us, slot }));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns a number above that of each slot in use.
    pub(super) fn end(&self) -> u32 {
        self.slots.capacity() as u32
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize).map(|it| &it.value)
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.slots[slot as usize].value
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Value(u64);

    impl Hashed for Value {
        fn hash(&self, hasher: &RandomState) -> u64 {
            hasher.hash_one(self.0)
        }
    }

    #[test]
    fn stale_due_entries_are_removed() {
        let (mut slots, hasher) = (Slots::<Value>::default(), RandomState::new());
        for at_us in 0..10_000 {
            let hash = hasher.hash_one(1_u64);
            let slot = slots.insert(hash, Value(1), 1_000_000 + at_us, &hasher);
            slots.set_due(slot, 2_000_000 + at_us);
            assert_eq!(slots.find(hash, |it| it.0 == 1), Some(slot));
            slots.remove(hash, slot);
        }
        assert!(slots.due.len() < 200, "{} entries are left", slots.due.len());
        assert_eq!(slots.take_due(u64::MAX), None);
    }
}
