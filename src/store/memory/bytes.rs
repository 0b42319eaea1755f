//! How much memory the logs of a [`MemoryStore`](super::MemoryStore) take.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::shard::Shard;
use crate::telemetry;

/// How many logs of each shard are looked at. The others are taken to be like them.
const SAMPLE: usize = 16;

/// What the gauge of the memory includes of a store.
#[derive(Default)]
pub(super) struct ReportedBytes {
    logs: AtomicUsize,
    bytes: AtomicUsize,
}

impl ReportedBytes {
    /// Returns whether the number of logs has changed so much that the bytes should be measured anew:
    /// by an eighth.
    pub(super) fn is_far_from(&self, held: usize) -> bool {
        let reported = self.logs.load(Ordering::Relaxed);
        held.abs_diff(reported) > reported / 8
    }

    pub(super) fn report(&self, held: usize, bytes: usize) {
        self.logs.store(held, Ordering::Relaxed);
        self.set(bytes);
    }

    fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        telemetry::memory_bytes(bytes as i64 - before as i64);
    }
}

impl Drop for ReportedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Shard {
    /// Returns how many bytes the shard takes, by a sample of its logs.
    pub(super) fn bytes(&self) -> usize {
        let (logs, heap) = self.sample_heap(SAMPLE);
        self.table_bytes() + (heap * self.len()).checked_div(logs).unwrap_or(0)
    }
}
