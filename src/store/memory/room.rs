//! How a [`MemoryStore`](super::MemoryStore) stays within its capacity.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ahash::RandomState;

use super::Inner;
use super::shard::Shard;
use crate::error::StoreError;
use crate::policy::Policy;
use crate::store::slots::SHARDS;
use crate::telemetry;
use crate::window::LogId;

const MOST_POLICIES: usize = 1024;

impl Inner {
    /// Calls `act`. If it fails for lack of room, drops all expired logs and calls it once more.
    #[inline]
    pub(super) fn with_room<T>(
        &self,
        logs: &[LogId],
        act: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut done = act();
        if let Err(StoreError::Full { .. }) = done {
            done = self.make_room_and(logs, &act);
        }
        let held = self.held.load(Ordering::Relaxed);
        if self.fill.report(held) {
            self.report_bytes(held);
        }
        done
    }

    /// Reports how much memory the store takes. Each lock is held for a fraction of a microsecond.
    #[cold]
    fn report_bytes(&self, held: usize) {
        if self.reported.is_far_from(held) {
            let logs: usize = (0..SHARDS).map(|shard| self.lock(shard).bytes()).sum();
            self.reported.report(held, logs + self.ban_records.bytes());
        }
    }

    #[cold]
    fn make_room_and<T>(
        &self,
        logs: &[LogId],
        act: &dyn Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let full = Err(StoreError::Full { capacity: self.capacity });
        let done = if self.make_room(logs) { act() } else { full };
        if let Err(StoreError::Full { .. }) = done {
            telemetry::memory_full();
        }
        done
    }

    /// Drops all expired logs, and returns whether there may be room now.
    ///
    /// In a flood of new keys each request comes here. So it visits the shards, whose locks the other
    /// requests need, only if a log has come due.
    fn make_room(&self, logs: &[LogId]) -> bool {
        let mut longest_us = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        for log in logs {
            self.shorten(&mut longest_us, &log.policy);
        }
        if self.now_us() < self.due_us.load(Ordering::Relaxed) {
            // Another thread may have made room while this one waited for the lock.
            return self.held.load(Ordering::Relaxed) < self.capacity;
        }
        // A log that is inserted meanwhile lowers it again.
        self.due_us.store(u64::MAX, Ordering::Relaxed);
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            self.drop_expired(&mut shard, self.now_us(), usize::MAX);
            self.due_us.fetch_min(shard.next_due_us(), Ordering::Relaxed);
        }
        true
    }

    /// Applies a policy to the logs of its earlier versions if its longest window has become shorter
    /// since the last sweep. Otherwise the logs of idle keys would keep their places for the earlier
    /// window.
    fn shorten(&self, longest_us: &mut HashMap<u64, u64, RandomState>, policy: &Arc<Policy>) {
        // Without a handle, a policy has no earlier version.
        let Some(handle) = policy.handle().number() else { return };
        let longest_window_us = policy.longest_window_us();
        let before_us = longest_us.get(&handle).copied();
        if before_us == Some(longest_window_us) {
            return;
        }
        if longest_us.len() >= MOST_POLICIES {
            longest_us.clear();
        }
        longest_us.insert(handle, longest_window_us);
        if before_us.is_some_and(|before_us| before_us < longest_window_us) {
            return;
        }
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            shard.shorten(policy);
            self.due_us.fetch_min(shard.next_due_us(), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn set_policy(&self, shard: &mut Shard, slot: u32, policy: &Arc<Policy>) {
        let stored = shard.log(slot).policy();
        if Arc::ptr_eq(stored, policy) || is_needed_for_longer(stored, policy) {
            return;
        }
        shard.set_policy(slot, policy);
        self.note_due(shard.due_us(slot));
    }

    pub(super) fn note_due(&self, due_us: u64) {
        if due_us < self.due_us.load(Ordering::Relaxed) {
            self.due_us.fetch_min(due_us, Ordering::Relaxed);
        }
    }

    /// Inserts a log whose first entry will be at `at_us`, and returns its slot.
    pub(super) fn insert(&self, shard: &mut Shard, hash: u64, log: &LogId, at_us: u64) -> u32 {
        let slot = shard.insert(hash, log, at_us, &self.hasher);
        self.note_due(shard.due_us(slot));
        slot
    }

    pub(super) fn reserve(&self, more: usize) -> bool {
        let grown = |held: usize| Some(held + more).filter(|sum| *sum <= self.capacity);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    pub(super) fn drop_expired(&self, shard: &mut Shard, now_us: u64, most: usize) {
        let dropped = shard.drop_expired(now_us, most, &self.hasher);
        if dropped > 0 {
            self.held.fetch_sub(dropped, Ordering::Relaxed);
        }
    }
}

/// Returns whether the policy of a log keeps its entries for longer than another policy of the same
/// name, and is not an earlier version of it.
fn is_needed_for_longer(stored: &Policy, other: &Policy) -> bool {
    !stored.handle().is_same(other.handle())
        && stored.longest_window_us() > other.longest_window_us()
}
