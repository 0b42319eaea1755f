//! [`Outage`]: when the store failed last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

use crate::time::micros;
use crate::window::Check;

#[derive(Clone, Debug)]
pub(crate) struct Outage(Arc<Record>);

#[derive(Debug)]
struct Record {
    epoch: Instant,
    /// The last failure, in microseconds since the epoch plus 1. 0 if there was none.
    last_us: AtomicU64,
    reconnections: AtomicU64,
    /// How many of the reconnections replaced the whole connection, not that to one node of a
    /// cluster.
    new_connections: AtomicU64,
    reconnects_silently: AtomicBool,
}

impl Outage {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Record {
            epoch: Instant::now(),
            last_us: AtomicU64::new(0),
            reconnections: AtomicU64::new(0),
            new_connections: AtomicU64::new(0),
            reconnects_silently: AtomicBool::new(false),
        }))
    }

    pub(crate) fn record_failure(&self) {
        self.0.last_us.fetch_max(self.now_us() + 1, Ordering::SeqCst);
    }

    /// Records that the whole connection was replaced, so that a call that failed before may
    /// succeed.
    pub(crate) fn record_new_connection(&self) {
        self.0.new_connections.fetch_add(1, Ordering::SeqCst);
        self.record_reconnection();
    }

    /// Records that a connection, perhaps to one of several servers, breaks and is made again. The
    /// server may have lost its data.
    pub(crate) fn record_reconnection(&self) {
        self.0.reconnections.fetch_add(1, Ordering::SeqCst);
        self.record_failure();
    }

    pub(crate) fn set_reconnects_silently(&self) {
        self.0.reconnects_silently.store(true, Ordering::SeqCst);
    }

    pub(crate) fn new_connections(&self) -> u64 {
        self.0.new_connections.load(Ordering::SeqCst)
    }

    /// Returns how often a connection was made again, the whole one or that to one node of a
    /// cluster.
    pub(crate) fn reconnections(&self) -> u64 {
        self.0.reconnections.load(Ordering::SeqCst)
    }

    /// Returns whether the store may lack an admission that is still in a window of the check.
    pub(crate) fn may_affect(&self, check: &Check) -> bool {
        if self.0.reconnects_silently.load(Ordering::Relaxed) {
            return true;
        }
        let last_us = self.0.last_us.load(Ordering::SeqCst);
        let longest_us = check.logs.iter().map(|log| log.policy.longest_window_us()).max();
        last_us > 0 && self.now_us() < last_us.saturating_add(longest_us.unwrap_or(0))
    }

    fn now_us(&self) -> u64 {
        micros(self.0.epoch.elapsed())
    }
}
