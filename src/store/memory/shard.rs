//! [`Shard`]: a part of a store's logs and ban records, which are found by their hash, and looked at again when they come
//! due.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::sync::{Arc, MutexGuard};

use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;
use uuid::Uuid;

use super::bans::StoredBan;
use super::room::Room;
use crate::policy::Logs;
use crate::window::{Log, LogId};

/// How many parts a store has, each under its own lock.
pub(super) const SHARDS: usize = 64;

/// Returns the shard of a hash. The table of the shard uses the low and the top bits, so the shard is
/// chosen by bits between them.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

pub(super) static EMPTY: Log = Log::new();

pub(super) struct StoredLog {
    pub(super) entries: Log,
    /// Short keys are inline: to follow a pointer costs as much as the rest of a look-up.
    key: SmallVec<[u8; 24]>,
    /// Not the policy: a request may have one of its own.
    of: Arc<Logs>,
    /// The number of losses of data in Redis after which Redis was last known to have the log.
    pub(super) loss: u64,
    /// When it last got a request that Redis may not know: this store has admitted it itself, or Redis has lost it since.
    pub(super) doubted_us: u64,
}

impl StoredLog {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.of == *log.policy.logs()
    }

    /// Adds a request at an instant.
    pub(super) fn add(&mut self, log: &LogId, request: Uuid, at_us: u64, cost: u32) {
        self.entries.remove_expired(at_us, self.of.retention_us);
        self.entries.record(log, request, at_us, cost);
    }

    pub(super) fn expires_us(&self) -> u64 {
        self.entries.newest_us().map_or(0, |newest| newest + self.of.retention_us)
    }
}

/// The logs and the ban records of some keys. Each comes due when it may have expired.
pub(super) struct Shard {
    pub(super) logs: Slots<StoredLog>,
    pub(super) bans: Slots<StoredBan>,
}

impl Shard {
    pub(super) fn new(logs: &Arc<Room>, bans: &Arc<Room>) -> Self {
        Self { logs: Slots::new(logs), bans: Slots::new(bans) }
    }

    /// Returns the slot of a log. `hash` is that of its key.
    pub(super) fn find(&self, hash: u64, log: &LogId) -> Option<u32> {
        self.logs.find(hash, |stored| stored.is(log))
    }

    /// Inserts a log for which there is room, whose first entry will be at `at_us`, and returns its slot.
    pub(super) fn insert(&mut self, hash: u64, log: &LogId, at_us: u64, loss: u64) -> u32 {
        let of = log.policy.logs().clone();
        let due_us = at_us + of.retention_us;
        let key = SmallVec::from_slice(log.key.as_bytes());
        let stored = StoredLog { entries: Log::new(), key, of, loss, doubted_us: 0 };
        self.logs.insert(hash, stored, due_us)
    }

    /// Keeps a log from coming due later than it expires, as it would after its newest entry was removed.
    pub(super) fn set_due(&mut self, slot: u32) {
        let expires_us = self.logs[slot].expires_us();
        self.logs.lower_due(slot, expires_us);
    }
}

/// The locked shards of some logs, and the hash of the key of each.
pub(super) struct Locked<'a> {
    pub(super) hashes: SmallVec<[u64; 2]>,
    /// In ascending order.
    pub(super) shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
}

impl Locked<'_> {
    /// Returns the shard of the log of an index, and the hash of its key.
    pub(super) fn shard(&mut self, index: usize) -> (&mut Shard, u64) {
        let hash = self.hashes[index];
        let at = self.shards.partition_point(|(shard, _)| *shard < shard_of(hash));
        (&mut self.shards[at].1, hash)
    }
}

/// Values in numbered slots. A value keeps its slot until it is removed.
///
/// Each value comes due at an instant. If it has not expired then, it comes due again when it will have. So a value
/// that is used again and again costs nothing: the instant is corrected only when it has come.
pub(super) struct Slots<T> {
    /// That of all shards.
    room: Arc<Room>,
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

impl<T> Slots<T> {
    fn new(room: &Arc<Room>) -> Self {
        let (by_hash, slots, due) = (HashTable::new(), Slab::new(), BTreeSet::new());
        Self { room: room.clone(), by_hash, slots, due }
    }

    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        self.by_hash.find(hash, |slot| is_it(&self[*slot])).copied()
    }

    /// Inserts a value that is not there yet, and for which there is room, and returns its slot.
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
        self.room.free();
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
        let room = Arc::new(Room::new(100));
        room.reserve(100).unwrap();
        let mut slots = Slots::new(&room);
        for hash in 0..100 {
            slots.insert(hash, (), 10);
        }
        assert_eq!(slots.drop_expired(|()| 20, 10, 2), 0);
        assert_eq!(slots.due.iter().filter(|(due_us, _)| *due_us == 20).count(), 2);
    }
}
