//! How a [`MemoryStore`](super::MemoryStore) stays within its capacity.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Inner;
use super::shard::Shard;
use super::slots::SHARDS;
use crate::error::StoreError;
use crate::telemetry;

const SECOND: Duration = Duration::from_secs(1);

impl Inner {
    /// Calls `act`. If it fails for lack of room, drops all expired logs and calls it once more.
    ///
    /// It reports nothing, so that the caller may hold a lock: [`Inner::report`] does afterwards.
    pub(super) fn with_room<T>(
        &self,
        act: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut done = act();
        if let Err(StoreError::Full { .. }) = done
            && self.make_room()
        {
            done = act();
        }
        if let Err(StoreError::Full { .. }) = done {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Reports how full the store is, and what there was no room for. Must not be called under a lock,
    /// because a subscriber or a recorder may use the store.
    pub(super) fn report(&self) {
        self.fill.report(self.held.load(Ordering::Relaxed));
        for _ in 0..take(&self.refused) {
            telemetry::memory_full();
        }
        if self.strikes_lost.load(Ordering::Relaxed) > 0 && self.strikes_reported.is_due(SECOND) {
            let strikes = take(&self.strikes_lost) as u64;
            telemetry::strikes_lost(strikes, StoreError::Full { capacity: self.capacity });
        }
    }

    /// Drops all expired logs and ban records, and returns whether there may be room now.
    ///
    /// In a flood of new keys each request comes here. To look at a shard in which nothing has come due takes some 20 ns.
    pub(super) fn make_room(&self) -> bool {
        let now_us = self.now_us();
        for shard in 0..SHARDS {
            self.drop_expired(&mut self.lock(shard), now_us, usize::MAX);
        }
        // Another thread may have made it.
        let has_room = |number: &AtomicUsize| number.load(Ordering::Relaxed) < self.capacity;
        has_room(&self.held) || has_room(&self.bans)
    }

    pub(super) fn reserve(&self, more: usize) -> bool {
        let grown = |held: usize| Some(held + more).filter(|sum| *sum <= self.capacity);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    pub(super) fn drop_expired(&self, shard: &mut Shard, now_us: u64, most: usize) {
        let (logs, bans) = shard.drop_expired(now_us, most);
        if logs > 0 {
            self.held.fetch_sub(logs, Ordering::Relaxed);
        }
        if bans > 0 {
            self.bans.fetch_sub(bans, Ordering::Relaxed);
        }
    }
}

/// Sets a number to 0 and returns what it was. Nothing is written if it is 0 already.
fn take(number: &AtomicUsize) -> usize {
    if number.load(Ordering::Relaxed) > 0 { number.swap(0, Ordering::Relaxed) } else { 0 }
}
