//! [`Values`]: a part of the map's values, and how many bytes they take.

use ahash::RandomState;

use crate::store::slots::{Due, Hashed, Slot, Slots};

/// A value of an [`ExpiringMap`].
pub(crate) trait ExpiringValue: Default {
    /// Returns how many bytes the value has on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Whether [`ExpiringValue::shrink`] can make room.
    const SHRINKS: bool = false;

    /// Makes the value smaller because the map has no room, and returns whether it may be dropped.
    fn shrink(&mut self) -> bool {
        false
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
    pub(super) slots: Slots<Stored<V>>,
    pub(super) bytes: usize,
}

pub(super) struct Stored<V> {
    pub(super) key: Box<[u8]>,
    pub(super) expires_us: u64,
    bytes: usize,
    pub(super) value: V,
}

impl<V> Stored<V> {
    /// Returns how many bytes a value takes in addition to its heap bytes: its slot, its key, and its entries in
    /// the table and in the queue of due values.
    pub(super) fn fixed_bytes(key: &[u8]) -> usize {
        size_of::<Slot<Self>>() + key.len() + 2 * size_of::<u32>() + size_of::<Due>()
    }
}

impl<V> Hashed for Stored<V> {
    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one(&*self.key)
    }
}

impl<V: ExpiringValue> Values<V> {
    pub(super) fn new() -> Self {
        Self { slots: Slots::default(), bytes: 0 }
    }

    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.slots.find(hash, |stored| *stored.key == *key)
    }

    pub(super) fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: V,
        expires_us: u64,
        hasher: &RandomState,
    ) {
        let stored = Stored { key: key.into(), expires_us, bytes: 0, value };
        let slot = self.slots.insert(hash, stored, expires_us, hasher);
        self.count_bytes(slot);
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        self.bytes -= self.slots.remove(hash, slot).bytes;
    }

    /// Updates the byte count after a value may have changed.
    pub(super) fn count_bytes(&mut self, slot: u32) {
        let stored = &mut self.slots[slot];
        let bytes = Stored::<V>::fixed_bytes(&stored.key) + stored.value.heap_bytes();
        self.bytes = self.bytes - stored.bytes + bytes;
        stored.bytes = bytes;
    }

    /// Removes the expired parts of a value. Returns whether it is still live.
    pub(super) fn expire(&mut self, slot: u32, now_us: u64) -> bool {
        let stored = &mut self.slots[slot];
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

    /// Makes all values smaller, and drops those that allow it.
    pub(super) fn shrink(&mut self, hasher: &RandomState) {
        for slot in 0..self.slots.end() {
            if self.slots.get(slot).is_none() {
                continue;
            }
            if self.slots[slot].value.shrink() {
                self.remove(self.slots[slot].hash(hasher), slot);
            } else {
                self.count_bytes(slot);
            }
        }
    }

    pub(super) fn drop_expired(&mut self, now_us: u64, most: usize, hasher: &RandomState) {
        let mut dropped = 0;
        while dropped < most
            && let Some(slot) = self.slots.take_due(now_us)
        {
            if self.expire(slot, now_us) {
                self.slots.set_due(slot, self.slots[slot].expires_us);
            } else {
                self.remove(self.slots[slot].hash(hasher), slot);
                dropped += 1;
            }
        }
    }
}
