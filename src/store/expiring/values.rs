//! [`Values`]: the slots of the map, and the order in which they expire.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

/// A value of an [`ExpiringMap`].
pub(crate) trait ExpiringValue: Default {
    /// Returns how many bytes the value has on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Removes the expired parts of the value, and returns how long to keep the rest. Called when the
    /// value has expired.
    fn expire(&mut self, _now_us: u64) -> Keep {
        Keep::Not
    }
}

/// How long to keep a value.
pub(crate) enum Keep {
    /// It expires at this instant, in microseconds of the map's own clock.
    Until(u64),
    /// It expires at this instant or at its present instant of expiry, whichever is later.
    AtLeastUntil(u64),
    /// It is dropped, or not inserted.
    Not,
}

pub(super) struct Values<V> {
    by_hash: HashTable<u32>,
    pub(super) slots: Slab<Slot<V>>,
    /// When to check whether a value has expired: the instant, the slot and its generation. An entry is
    /// corrected at that instant, not when its value changes. It is stale if the slot has another
    /// generation by then.
    pub(super) due: BinaryHeap<Reverse<(u64, u32, u32)>>,
    next_generation: u32,
    pub(super) bytes: usize,
}

pub(super) struct Slot<V> {
    pub(super) key: Box<[u8]>,
    generation: u32,
    pub(super) expires_us: u64,
    bytes: usize,
    pub(super) value: V,
}

impl<V> Slot<V> {
    /// Returns how many bytes a value takes in addition to its heap bytes: its slot, its key, and its entries in the
    /// table and in the heap of due values.
    pub(super) fn fixed_bytes(key: &[u8]) -> usize {
        size_of::<Self>() + key.len() + 2 * size_of::<u32>() + size_of::<(u64, u32, u32)>()
    }
}

impl<V: ExpiringValue> Values<V> {
    pub(super) fn new() -> Self {
        Self {
            by_hash: HashTable::new(),
            slots: Slab::new(),
            due: BinaryHeap::new(),
            next_generation: 0,
            bytes: 0,
        }
    }

    /// Returns when the next value comes due.
    pub(super) fn due_us(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |Reverse((due_us, ..))| *due_us)
    }

    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.by_hash.find(hash, |slot| *self.slots[*slot as usize].key == *key).copied()
    }

    pub(super) fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: V,
        expires_us: u64,
        hasher: &RandomState,
    ) {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let slot = Slot { key: key.into(), generation, expires_us, bytes: 0, value };
        // The capacity fits into 32 bits.
        let slot = self.slots.insert(slot) as u32;
        let Self { by_hash, slots, .. } = self;
        by_hash.insert_unique(hash, slot, |slot| hasher.hash_one(&*slots[*slot as usize].key));
        self.due.push(Reverse((expires_us, slot, generation)));
        self.count_bytes(slot);
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        if let Ok(entry) = self.by_hash.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.bytes -= self.slots.remove(slot as usize).bytes;
        // The entry in `due` is stale now. Remove stale entries when they are more than half.
        if self.due.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.due.retain(|Reverse((_, slot, generation))| {
                slots.get(*slot as usize).is_some_and(|stored| stored.generation == *generation)
            });
        }
    }

    /// Updates the byte count after a value may have changed.
    pub(super) fn count_bytes(&mut self, slot: u32) {
        if let Some(stored) = self.slots.get_mut(slot as usize) {
            let bytes = Slot::<V>::fixed_bytes(&stored.key) + stored.value.heap_bytes();
            self.bytes = self.bytes - stored.bytes + bytes;
            stored.bytes = bytes;
        }
    }

    /// Removes the expired parts of a value. Returns whether it is still live.
    pub(super) fn expire(&mut self, slot: u32, now_us: u64) -> bool {
        let stored = &mut self.slots[slot as usize];
        if stored.expires_us > now_us {
            return true;
        }
        match stored.value.expire(now_us) {
            Keep::Until(at_us) | Keep::AtLeastUntil(at_us) => stored.expires_us = at_us,
            Keep::Not => stored.value = V::default(),
        }
        let is_live = stored.expires_us > now_us;
        self.count_bytes(slot);
        is_live
    }

    pub(super) fn drop_expired(&mut self, now_us: u64, most: usize, hasher: &RandomState) {
        let mut dropped = 0;
        while dropped < most
            && let Some(Reverse((due_us, slot, generation))) = self.due.peek().copied()
            && due_us <= now_us
        {
            self.due.pop();
            if self.slots.get(slot as usize).is_none_or(|stored| stored.generation != generation) {
                continue;
            }
            if self.expire(slot, now_us) {
                self.due.push(Reverse((self.slots[slot as usize].expires_us, slot, generation)));
            } else {
                let hash = hasher.hash_one(&*self.slots[slot as usize].key);
                self.remove(hash, slot);
                dropped += 1;
            }
        }
    }
}
