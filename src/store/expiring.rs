//! [`ExpiringMap`]: values by key in this process, each until it expires.

mod room;
mod shards;
#[cfg(test)]
mod tests;
mod values;

use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use tokio::time::Instant;

use self::room::Lack;
#[cfg(feature = "moderation")]
pub(crate) use self::room::Room;
#[cfg(not(feature = "moderation"))]
use self::room::Room;
use self::shards::{Locked, Shards};
use self::values::Stored;
pub(crate) use self::values::{ExpiringValue, Keep};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::slots::{SHARDS, shard_of};
use crate::time::micros;

const DROPPED_PER_UPDATE: usize = 2;
const SLOTS_PER_PAGE: usize = 100_000;

/// A map of values that expire. From its instant of expiry on, a value counts as absent.
///
/// The number of values is capped. At the cap, expired values are dropped. A live value is dropped only
/// if its [`ExpiringValue::shrink`] allows it: else a new key gets [`StoreError::Full`] instead. The bytes of the values are counted against a
/// budget, from which an update reserves what its value needs with [`Room::reserve`].
//
// Concurrency. An update locks the shard of its key, and reads the clock under the lock, so that the
// time of one value never steps back. No thread locks a shard while it holds another.
//
// The cap and the budget are those of all shards together. An update reserves a place and bytes in
// `Totals` before its shard grows, in one step with the comparison, so two updates can't use the same
// room. It reserves the most that it may need, and gives the rest back when it unlocks its shard.
// Until then another update may find too little room, but there are never more values or bytes than
// allowed.
//
// An update without room unlocks its shard, drops the expired values of all shards, and tries again.
// It visits only shards in which a value has come due, so a flood of new keys takes no further lock.
pub(crate) struct ExpiringMap<V> {
    shards: Shards<V>,
    hasher: RandomState,
    epoch: Instant,
    next_to_shrink: AtomicUsize,
}

/// Returns how many bytes a key has on the heap.
pub(crate) fn heap_bytes_of(key: &Key) -> usize {
    // A shorter key is stored inline.
    let inline = size_of::<Key>() - size_of::<usize>();
    Some(key.as_bytes().len()).filter(|length| *length > inline).unwrap_or(0)
}

impl<V: ExpiringValue> ExpiringMap<V> {
    /// Creates a map for `capacity` values, with an unlimited budget.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: Shards::new(capacity.min(u32::MAX as usize)),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            next_to_shrink: AtomicUsize::new(0),
        }
    }

    pub(crate) fn set_budget(&self, bytes: usize) {
        self.shards.totals().set_budget(bytes);
    }

    pub(crate) fn too_many_bytes(&self) -> StoreError {
        self.shards.totals().too_many_bytes()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shards.totals().bytes()
    }

    /// Calls `change` with the value of a key, or with a default value if the key is absent, and with
    /// the present instant in microseconds. Keeps the value as `change` returns.
    ///
    /// If there is no room for a new value, `change` may be called a second time, and the result of the
    /// first call is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if a new value is to be kept and there is no room. The value is dropped.
    pub(crate) fn update<R>(
        &self,
        key: &[u8],
        change: impl Fn(&mut V, u64) -> (R, Keep),
    ) -> Result<R, StoreError> {
        self.update_within(key, |value, now_us, _| change(value, now_us))
    }

    /// Like [`ExpiringMap::update`]. Also passes the room in the budget to `change`.
    ///
    /// If `change` reserves more than there is, it must leave the value as it was, apart from its expired
    /// parts. It is called a second time if expired values make room.
    pub(crate) fn update_within<R>(
        &self,
        key: &[u8],
        change: impl Fn(&mut V, u64, &mut Room<'_>) -> (R, Keep),
    ) -> Result<R, StoreError> {
        let hash = self.hasher.hash_one(key);
        let (result, lack) = self.try_update(hash, key, &change);
        match lack {
            Some(lack) if self.make_room(lack, shard_of(hash)) => {
                self.try_update(hash, key, &change).0
            }
            _ => result,
        }
    }

    /// Also returns what there was no room for.
    fn try_update<R>(
        &self,
        hash: u64,
        key: &[u8],
        change: &impl Fn(&mut V, u64, &mut Room<'_>) -> (R, Keep),
    ) -> (Result<R, StoreError>, Option<Lack>) {
        let mut locked = self.shards.lock(shard_of(hash));
        let now_us = self.now_us();
        let Locked { values, counted, totals, .. } = &mut locked;
        values.drop_expired(now_us, DROPPED_PER_UPDATE, &self.hasher);
        if let Some(slot) = values.find(hash, key) {
            values.expire(slot, now_us);
            let stored = &mut values.slots[slot];
            let mut room = Room::new(totals, counted, 0);
            let (result, keep) = change(&mut stored.value, now_us, &mut room);
            let lack = room.lack();
            match keep {
                Keep::Until(at_us) => stored.expires_us = at_us,
                Keep::AtLeastUntil(at_us) => stored.expires_us = stored.expires_us.max(at_us),
                Keep::Not => {
                    values.remove(hash, slot);
                    return (Ok(result), lack);
                }
            }
            values.count_bytes(slot);
            return (Ok(result), lack);
        }
        let mut value = V::default();
        let mut room = Room::new(totals, counted, Stored::<V>::fixed_bytes(key));
        let (result, keep) = change(&mut value, now_us, &mut room);
        let lack = room.lack();
        let expires_us = match keep {
            Keep::Until(at_us) | Keep::AtLeastUntil(at_us) if at_us > now_us => at_us,
            _ => return (Ok(result), lack),
        };
        if let Err(full) = totals.reserve_place(counted) {
            return (Err(full), Some(Lack::Place));
        }
        values.insert(hash, key, value, expires_us, &self.hasher);
        (Ok(result), lack)
    }

    /// Drops all expired values, and makes others smaller, but none in the shard `own`. Returns whether
    /// there is room now. The caller holds no shard.
    fn make_room(&self, lack: Lack, own: usize) -> bool {
        let now_us = self.now_us();
        for shard in (0..SHARDS).filter(|shard| self.shards.is_due(*shard, now_us)) {
            let mut locked = self.shards.lock(shard);
            locked.values.drop_expired(self.now_us(), usize::MAX, &self.hasher);
        }
        // The shards take turns, so that an update finds room in the first or second one in most cases.
        // All of them several times, because a value may be dropped only after it was made small.
        let (mut shards, mut visited) = (0, 0);
        // Another thread may have made room before this one came to the shard.
        while !self.shards.totals().has_room(lack) {
            if !V::SHRINKS || shards == 8 * SHARDS || visited >= SLOTS_PER_PAGE {
                return false;
            }
            let shard = self.next_to_shrink.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shards += 1;
            if shard == own {
                continue;
            }
            let mut locked = self.shards.lock(shard);
            locked.values.shrink(&self.hasher);
            visited += locked.values.slots.len();
        }
        true
    }

    /// Calls `read` with the value of a key and the present instant. Returns `None` if the key is
    /// absent.
    pub(crate) fn read<R>(&self, key: &[u8], read: impl FnOnce(&V, u64) -> R) -> Option<R> {
        let hash = self.hasher.hash_one(key);
        let values = self.shards.values(shard_of(hash));
        let now_us = self.now_us();
        let stored = &values.slots[values.find(hash, key)?];
        (stored.expires_us > now_us).then(|| read(&stored.value, now_us))
    }

    /// Returns up to `count` results of `read` for live values, beginning at a position, and the
    /// position of the next page if there may be more. The first position is 0.
    ///
    /// A value that is present while all pages are read is read once, because it keeps its position.
    pub(crate) fn page<R>(
        &self,
        position: u64,
        count: usize,
        mut read: impl FnMut(&[u8], &V, u64) -> Option<R>,
    ) -> (Vec<R>, Option<u64>) {
        // A position is the number of the shard, and in the low half that of the slot.
        let first_shard = usize::try_from(position >> 32).unwrap_or(SHARDS);
        let mut first_slot = position as u32;
        let (mut found, mut visited) = (Vec::new(), 0);
        for shard in first_shard..SHARDS {
            let values = self.shards.values(shard);
            let now_us = self.now_us();
            for slot in first_slot..values.slots.end() {
                if found.len() >= count.max(1) || visited >= SLOTS_PER_PAGE {
                    return (found, Some((shard as u64) << 32 | u64::from(slot)));
                }
                visited += 1;
                let stored = values.slots.get(slot).filter(|stored| stored.expires_us > now_us);
                found.extend(stored.and_then(|stored| read(&stored.key, &stored.value, now_us)));
            }
            first_slot = 0;
        }
        (found, None)
    }

    /// Returns whether no value is held, not even an expired one.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.totals().held() == 0
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.totals().held()
    }

    fn now_us(&self) -> u64 {
        micros(self.epoch.elapsed())
    }
}
