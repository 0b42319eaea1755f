//! [`ExpiringMap`]: values by key in this process, each until it expires.

#[cfg(test)]
mod tests;
mod values;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tokio::time::Instant;

pub(crate) use self::values::{ExpiringValue, Keep};
use self::values::{Slot, Values};
use crate::error::StoreError;
use crate::key::Key;
use crate::time::micros;

const DROPPED_PER_UPDATE: usize = 2;
/// With less room than this, in bytes, an update drops all expired values.
const LITTLE_ROOM: usize = 1 << 20;
const SLOTS_PER_PAGE: usize = 100_000;

/// A map of values that expire. From its instant of expiry on, a value counts as absent.
///
/// The number of values is capped. At the cap, expired values are dropped. A live value is never
/// dropped: a new key gets [`StoreError::Full`] instead. The bytes of the values are counted against a
/// budget, which the caller of [`ExpiringMap::update_within`] enforces.
pub(crate) struct ExpiringMap<V> {
    values: Mutex<Values<V>>,
    hasher: RandomState,
    epoch: Instant,
    capacity: usize,
    budget: AtomicUsize,
}

pub(crate) fn heap_bytes_of(key: &Key) -> usize {
    // A shorter key is stored inline.
    let inline = size_of::<Key>() - size_of::<usize>();
    Some(key.as_bytes().len()).filter(|length| *length > inline).unwrap_or(0)
}

impl<V: ExpiringValue> ExpiringMap<V> {
    /// Creates a map for `capacity` values, with an unlimited budget.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            values: Mutex::new(Values::new()),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            capacity: capacity.min(u32::MAX as usize),
            budget: AtomicUsize::new(usize::MAX),
        }
    }

    pub(crate) fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn too_many_bytes(&self) -> StoreError {
        StoreError::TooManyBytes { budget: self.budget.load(Ordering::Relaxed) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Calls `change` with the value of a key, or with a default value if the key is absent, and with
    /// the present instant in microseconds. Keeps the value as `change` returns.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if a new value is to be kept and there is no room. The value is dropped.
    pub(crate) fn update<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut V, u64) -> (R, Keep),
    ) -> Result<R, StoreError> {
        self.update_within(key, |value, now_us, _| change(value, now_us))
    }

    /// Like [`ExpiringMap::update`]. Also passes the bytes left in the budget to `change`.
    pub(crate) fn update_within<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut V, u64, usize) -> (R, Keep),
    ) -> Result<R, StoreError> {
        let hash = self.hasher.hash_one(key);
        let mut values = self.lock();
        // Read under the lock, so that the time of one value never steps back.
        let now_us = self.now_us();
        values.drop_expired(now_us, DROPPED_PER_UPDATE, &self.hasher);
        if self.room(&values) < LITTLE_ROOM {
            values.drop_expired(now_us, usize::MAX, &self.hasher);
        }
        if let Some(slot) = values.find(hash, key) {
            values.expire(slot, now_us);
            let room = self.room(&values);
            let stored = &mut values.slots[slot as usize];
            let (result, keep) = change(&mut stored.value, now_us, room);
            match keep {
                Keep::Until(at_us) => stored.expires_us = at_us,
                Keep::AtLeastUntil(at_us) => stored.expires_us = stored.expires_us.max(at_us),
                Keep::Not => values.remove(hash, slot),
            }
            values.count_bytes(slot);
            return Ok(result);
        }
        let mut value = V::default();
        let room = self.room(&values).saturating_sub(Slot::<V>::fixed_bytes(key));
        let (result, keep) = change(&mut value, now_us, room);
        let expires_us = match keep {
            Keep::Until(at_us) | Keep::AtLeastUntil(at_us) if at_us > now_us => at_us,
            _ => return Ok(result),
        };
        if values.slots.len() >= self.capacity {
            values.drop_expired(now_us, usize::MAX, &self.hasher);
        }
        if values.slots.len() >= self.capacity {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        values.insert(hash, key, value, expires_us, &self.hasher);
        Ok(result)
    }

    /// Calls `read` with the value of a key and the present instant. Returns `None` if the key is
    /// absent.
    pub(crate) fn read<R>(&self, key: &[u8], read: impl FnOnce(&V, u64) -> R) -> Option<R> {
        let values = self.lock();
        let now_us = self.now_us();
        let slot = values.find(self.hasher.hash_one(key), key)?;
        let stored = &values.slots[slot as usize];
        (stored.expires_us > now_us).then(|| read(&stored.value, now_us))
    }

    /// Returns up to `count` results of `read` for live values, beginning at a position, and the
    /// position of the next page if there may be more.
    ///
    /// A value that is present while all pages are read is read once, because it keeps its position.
    pub(crate) fn page<R>(
        &self,
        position: usize,
        count: usize,
        mut read: impl FnMut(&[u8], &V, u64) -> Option<R>,
    ) -> (Vec<R>, Option<usize>) {
        let values = self.lock();
        let now_us = self.now_us();
        let (end, mut found) = (values.slots.capacity(), Vec::new());
        let next = position.saturating_add(SLOTS_PER_PAGE);
        for position in position..end.min(next) {
            if found.len() >= count.max(1) {
                return (found, Some(position));
            }
            let stored = values.slots.get(position).filter(|stored| stored.expires_us > now_us);
            found.extend(stored.and_then(|stored| read(&stored.key, &stored.value, now_us)));
        }
        (found, (next < end).then_some(next))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().slots.len()
    }

    fn lock(&self) -> MutexGuard<'_, Values<V>> {
        // A panic under the lock leaves the map consistent, so a poisoned lock can be used.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, values: &Values<V>) -> usize {
        self.budget.load(Ordering::Relaxed).saturating_sub(values.bytes)
    }

    fn now_us(&self) -> u64 {
        micros(self.epoch.elapsed())
    }
}
