//! [`Shards`]: the values of the map in parts, each with its own lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::room::{Counted, Totals};
use super::values::{ExpiringValue, Values};
use crate::store::slots::SHARDS;

pub(super) struct Shards<V> {
    shards: Box<[Mutex<Values<V>>; SHARDS]>,
    /// No value of a shard comes due before the shard's instant. It is written under the shard's lock.
    due_us: [AtomicU64; SHARDS],
    totals: Totals,
}

/// A locked shard. When it is unlocked, the totals include its changes.
pub(super) struct Locked<'a, V: ExpiringValue> {
    pub(super) values: MutexGuard<'a, Values<V>>,
    pub(super) counted: Counted,
    pub(super) totals: &'a Totals,
    due_us: &'a AtomicU64,
}

impl<V: ExpiringValue> Shards<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| Mutex::new(Values::new()))),
            due_us: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            totals: Totals::new(capacity),
        }
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns whether a value of the shard may have expired.
    pub(super) fn is_due(&self, shard: usize, now_us: u64) -> bool {
        // What was unlocked before the shard came not due any more is in the totals.
        self.due_us[shard].load(Ordering::Acquire) <= now_us
    }

    /// Locks a shard to read its values.
    pub(super) fn values(&self, shard: usize) -> MutexGuard<'_, Values<V>> {
        // A panic under the lock leaves the shard consistent, so a poisoned lock can be used.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self, shard: usize) -> Locked<'_, V> {
        let values = self.values(shard);
        let counted = Counted { held: values.slots.len(), bytes: values.bytes };
        Locked { values, counted, totals: &self.totals, due_us: &self.due_us[shard] }
    }
}

impl<V: ExpiringValue> Drop for Locked<'_, V> {
    fn drop(&mut self) {
        self.totals.settle(&self.counted, self.values.slots.len(), self.values.bytes);
        // After the totals: another thread that finds the shard not due must see what was dropped.
        let due_us = self.values.slots.next_due_us();
        if due_us != self.due_us.load(Ordering::Relaxed) {
            self.due_us.store(due_us, Ordering::Release);
        }
    }
}
