//! How a store keeps to its capacity.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ahash::RandomState;

use super::Inner;
use super::shard::{SHARDS, Shard};
use crate::error::StoreError;
use crate::policy::Policy;
use crate::telemetry;
use crate::window::LogId;

/// Of how many policies the store remembers how long their logs were when it was last full.
const MOST_POLICIES: usize = 1024;

impl Inner {
    /// Does what may need room, and once more after all logs that have run out were dropped.
    pub(super) fn with_room<T>(
        &self,
        logs: &[LogId],
        act: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = act();
        let again = matches!(done, Err(StoreError::Full { .. })) && self.make_room(logs);
        let done = if again { act() } else { done };
        self.fill.notice(self.held.load(Ordering::Relaxed));
        if let Err(StoreError::Full { .. }) = done {
            telemetry::memory_full();
        }
        done
    }

    /// Drops all logs that have run out, and says whether there may be room now.
    ///
    /// A flood of new keys comes here with each of them, and is not to go through all shards, whose
    /// locks others need, unless that is of use.
    fn make_room(&self, logs: &[LogId]) -> bool {
        let mut known = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        for log in logs {
            self.shorten(&mut known, &log.policy);
        }
        if self.now_us() < self.due_us.load(Ordering::Relaxed) {
            // Another thread may have made some while this one waited for the lock.
            return self.held.load(Ordering::Relaxed) < self.capacity;
        }
        // Windows made meanwhile lower it by themselves.
        self.due_us.store(u64::MAX, Ordering::Relaxed);
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            self.drop_expired(&mut shard, self.now_us(), usize::MAX);
            self.due_us.fetch_min(shard.due_us(), Ordering::Relaxed);
        }
        true
    }

    /// Holds the logs of a policy to its present length, if that is shorter than when they were
    /// last gone through: those of keys that do not come again would keep their places for the old.
    fn shorten(&self, known: &mut HashMap<String, u64, RandomState>, policy: &Arc<Policy>) {
        let longest_window_us = policy.longest_window_us();
        let before_us = known.get(policy.log_name()).copied();
        if before_us == Some(longest_window_us) {
            return;
        }
        if known.len() >= MOST_POLICIES {
            known.clear();
        }
        known.insert(policy.log_name().to_owned(), longest_window_us);
        if before_us.is_some_and(|before_us| before_us < longest_window_us) {
            return;
        }
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            shard.shorten(policy);
            self.due_us.fetch_min(shard.due_us(), Ordering::Relaxed);
        }
    }

    /// Has the entries of a log matter for as long as `policy` says.
    pub(super) fn adopt(&self, shard: &mut Shard, slot: u32, policy: &Arc<Policy>) {
        shard.adopt(slot, policy);
        self.note_due(shard.log(slot).due_us());
    }

    pub(super) fn note_due(&self, due_us: u64) {
        if due_us < self.due_us.load(Ordering::Relaxed) {
            self.due_us.fetch_min(due_us, Ordering::Relaxed);
        }
    }

    /// Makes a log to add an entry of that timestamp to, and returns its slot.
    pub(super) fn insert(&self, shard: &mut Shard, hash: u64, log: &LogId, at_us: u64) -> u32 {
        let slot = shard.insert(hash, log, at_us, &self.hasher);
        self.note_due(shard.log(slot).due_us());
        slot
    }

    /// Counts `more` logs in, unless that would pass the cap.
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
