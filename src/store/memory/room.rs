//! How a [`MemoryStore`](super::MemoryStore) stays within its capacity.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shard::{SHARDS, Shard, StoredLog};
use super::{Inner, MemoryStore};
use crate::error::StoreError;
use crate::telemetry;

const SECOND: Duration = Duration::from_secs(1);
/// How many logs and ban records of each shard a request looks at that needs room. To drop so many takes about a
/// millisecond.
const MOST_SWEPT: usize = 64;

/// How many values a store holds, of at most so many. Raised before they are inserted and lowered after they are removed.
pub(super) struct Room {
    held: AtomicUsize,
    pub(super) capacity: usize,
}

impl Room {
    pub(super) fn new(capacity: usize) -> Self {
        Self { held: AtomicUsize::new(0), capacity }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Makes so many more count, if there is room.
    pub(super) fn reserve(&self, more: usize) -> Result<(), StoreError> {
        let grown = |held: usize| Some(held + more).filter(|sum| *sum <= self.capacity);
        let is_grown = more == 0
            || self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        is_grown.then_some(()).ok_or(StoreError::Full { capacity: self.capacity })
    }

    pub(super) fn ensure_room(&self) -> Result<(), StoreError> {
        let has_room = self.held() < self.capacity;
        has_room.then_some(()).ok_or(StoreError::Full { capacity: self.capacity })
    }

    pub(super) fn free(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemoryStore {
    /// Reports how full the store is, and what there was no room for. Must not be called under a lock,
    /// because a subscriber or a recorder may use the store.
    pub(in crate::store) fn report(&self) {
        let inner = &self.0;
        // Where no new keys come any more, nothing else drops what a flood has left.
        if inner.fill.is_nearly_full() && inner.swept.is_due(SECOND) {
            inner.sweep();
        }
        self.report_held();
        for _ in 0..take(&inner.refused) {
            telemetry::memory_full();
        }
        if inner.strikes_lost.load(Ordering::Relaxed) > 0 && inner.strikes_reported.is_due(SECOND) {
            let strikes = take(&inner.strikes_lost) as u64;
            telemetry::strikes_lost(strikes, StoreError::Full { capacity: inner.bans.capacity });
        }
    }

    /// Reports how full the store is, under no lock either.
    pub(super) fn report_held(&self) {
        self.0.fill.report(self.0.logs.held());
    }
}

impl Inner {
    /// Calls `act`, and again while it fails for lack of room and there is something expired to drop.
    pub(super) fn make_room_for<T>(
        &self,
        act: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut done = act();
        while let Err(StoreError::Full { .. }) = done {
            let has_dropped = self.make_room();
            // Another thread may have made it.
            done = act();
            if !has_dropped {
                break;
            }
        }
        done
    }

    /// Drops some expired logs and ban records, and returns whether there were any.
    ///
    /// In a flood of new keys each request comes here. To look at a shard in which nothing has come due takes some 20 ns.
    pub(super) fn make_room(&self) -> bool {
        loop {
            let (dropped, is_more_due) = self.sweep();
            if dropped > 0 || !is_more_due {
                return dropped > 0;
            }
        }
    }

    /// Looks at some of what has come due in each shard. Returns how much was dropped, and whether more is due.
    fn sweep(&self) -> (usize, bool) {
        let (now_us, mut dropped, mut is_more_due) = (self.now_us(), 0, false);
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            dropped += self.drop_expired(&mut shard, now_us, MOST_SWEPT);
            is_more_due |= shard.logs.has_due(now_us) || shard.bans.has_due(now_us);
        }
        (dropped, is_more_due)
    }

    /// Drops up to `most` expired logs and as many ban records of a shard, and returns how many it has dropped.
    pub(super) fn drop_expired(&self, shard: &mut Shard, now_us: u64, most: usize) -> usize {
        shard.logs.drop_expired(StoredLog::expires_us, now_us, most)
            + shard.bans.drop_expired(|ban| ban.expires_us, now_us, most)
    }
}

/// Sets a number to 0 and returns what it was. Nothing is written if it is 0 already.
fn take(number: &AtomicUsize) -> usize {
    if number.load(Ordering::Relaxed) > 0 { number.swap(0, Ordering::Relaxed) } else { 0 }
}
