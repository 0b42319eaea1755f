//! [`Log`]: the messages of one group in process.

use std::collections::{HashSet, VecDeque};

use ahash::RandomState;

use crate::key::Key;
use crate::store::heap_bytes_of;

/// Messages with their timestamps, oldest first; messages with equal timestamps are sorted by id.
#[derive(Default)]
pub(super) struct Log {
    pub(super) entries: VecDeque<(u64, Key)>,
    ids: HashSet<Key, RandomState>,
    /// How many bytes the ids take on the heap, in both collections.
    heap_bytes: usize,
}

impl Log {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Adds a message unless it is present, and drops the oldest above the cap. Returns whether it was
    /// added.
    pub(super) fn add(&mut self, now_us: u64, id: &Key, cap: u32) -> bool {
        if !self.ids.insert(id.clone()) {
            return false;
        }
        self.heap_bytes += 2 * heap_bytes_of(id);
        let entry = (now_us, id.clone());
        let later = self.entries.iter().rev().take_while(|it| **it > entry).count();
        self.entries.insert(self.entries.len() - later, entry);
        while self.len() > cap {
            self.drop_oldest();
        }
        true
    }

    pub(super) fn expire(&mut self, now_us: u64, window_us: u64) {
        while self.entries.front().is_some_and(|(at_us, _)| now_us - at_us >= window_us) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.entries.pop_front() {
            self.ids.remove(&id);
            self.heap_bytes -= 2 * heap_bytes_of(&id);
        }
    }

    /// Returns how many bytes the log takes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<(u64, Key)>();
        entries + set_bytes(self.ids.capacity()) + self.heap_bytes
    }

    /// Returns by how many bytes the log may grow if a message is added.
    pub(super) fn growth(&self, now_us: u64, id: &Key, window_us: u64) -> usize {
        if self.ids.contains(id) {
            return 0;
        }
        let expired = self.entries.partition_point(|(at_us, _)| now_us - at_us >= window_us);
        let live = self.entries.len() - expired;
        let mut bytes = 2 * heap_bytes_of(id);
        // A full collection doubles its capacity.
        if live == self.entries.capacity() {
            bytes += live.max(4) * size_of::<(u64, Key)>();
        }
        let capacity = self.ids.capacity();
        if live == capacity {
            bytes += set_bytes(2 * capacity.max(2)) - set_bytes(capacity);
        }
        bytes
    }

    pub(super) fn newest_us(&self) -> Option<u64> {
        self.entries.back().map(|(at_us, _)| *at_us)
    }

    /// Returns when fewer than `count` messages are in the window, if there are as many now.
    pub(super) fn below_at(&self, count: u32, window_us: u64) -> Option<u64> {
        let place = self.entries.len().checked_sub(count as usize)?;
        self.entries.get(place).map(|(at_us, _)| at_us + window_us)
    }
}

/// Returns how many bytes a set with this capacity takes.
fn set_bytes(capacity: usize) -> usize {
    // One in eight buckets stays free, and each bucket has a control byte.
    (capacity * 8).div_ceil(7) * (size_of::<Key>() + 1)
}
