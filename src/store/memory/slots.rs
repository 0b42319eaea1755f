//! [`Slots`]: values that are found by their hash, and looked at again when they come due.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use slab::Slab;

/// How many parts a map of values has, each with its own [`Slots`] under its own lock.
pub(super) const SHARDS: usize = 64;

/// Returns the shard of a hash. The table of the shard uses the low and the top bits, so the shard is
/// chosen by bits between them.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// Values in numbered slots. A value keeps its slot until it is removed.
///
/// Each value comes due at an instant. If it has not expired then, it comes due again when it will have. So a value
/// that is used again and again costs nothing: the instant is corrected only when it has come.
pub(super) struct Slots<T> {
    by_hash: HashTable<u32>,
    slots: Slab<Slot<T>>,
    /// When each value comes due, and its slot.
    due: BTreeSet<(u64, u32)>,
}

/// The place of a value.
struct Slot<T> {
    hash: u64,
    due_us: u64,
    value: T,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { by_hash: HashTable::new(), slots: Slab::new(), due: BTreeSet::new() }
    }
}

impl<T> Slots<T> {
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        self.by_hash.find(hash, |slot| is_it(&self[*slot])).copied()
    }

    /// Inserts a value that is not there yet, and returns its slot.
    pub(super) fn insert(&mut self, hash: u64, value: T, due_us: u64) -> u32 {
        // The capacities of all maps fit into 32 bits.
        let slot = self.slots.insert(Slot { hash, due_us, value }) as u32;
        let slots = &self.slots;
        self.by_hash.insert_unique(hash, slot, |slot| slots[*slot as usize].hash);
        self.due.insert((due_us, slot));
        slot
    }

    /// Removes the value of a slot. The slot must not be empty.
    pub(super) fn remove(&mut self, slot: u32) {
        let Slot { hash, due_us, .. } = self.slots.remove(slot as usize);
        if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        self.due.remove(&(due_us, slot));
    }

    /// Visits up to `most` values that have come due. Drops those that have expired, and returns how many these are.
    pub(super) fn drop_expired(
        &mut self,
        expires_us: impl Fn(&T) -> u64,
        now_us: u64,
        most: usize,
    ) -> usize {
        let mut dropped = 0;
        for _ in 0..most {
            let Some(&(_, slot)) = self.due.first().filter(|(due_us, _)| *due_us <= now_us) else {
                break;
            };
            let at_us = expires_us(&self[slot]);
            if at_us > now_us {
                self.set_due(slot, at_us);
            } else {
                self.remove(slot);
                dropped += 1;
            }
        }
        dropped
    }

    /// Returns whether a value has come due.
    pub(super) fn has_due(&self, now_us: u64) -> bool {
        self.due.first().is_some_and(|(due_us, _)| *due_us <= now_us)
    }

    /// Lets a value come due no later than at an instant.
    pub(super) fn lower_due(&mut self, slot: u32, at_us: u64) {
        if at_us < self.slots[slot as usize].due_us {
            self.set_due(slot, at_us);
        }
    }

    /// Sets when a value comes due.
    fn set_due(&mut self, slot: u32, at_us: u64) {
        let before = std::mem::replace(&mut self.slots[slot as usize].due_us, at_us);
        self.due.remove(&(before, slot));
        self.due.insert((at_us, slot));
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

    /// As many logs come due together whose first admissions of a sale were in one second, and whose last ones were later.
    #[test]
    fn values_that_are_due_and_still_live_are_not_all_visited() {
        let mut slots = Slots::default();
        for hash in 0..100 {
            slots.insert(hash, (), 10);
        }
        assert_eq!(slots.drop_expired(|()| 20, 10, 2), 0);
        assert_eq!(slots.due.iter().filter(|(due_us, _)| *due_us == 20).count(), 2);
    }
}
