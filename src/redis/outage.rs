//! [`Outage`]: when the store was last seen to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

use crate::time::micros;
use crate::window::Check;

/// When the store was last seen to fail. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Outage(Arc<Observed>);

#[derive(Debug)]
struct Observed {
    epoch: Instant,
    /// Microseconds since the epoch, plus 1; 0 if never.
    last: AtomicU64,
    reconnections: AtomicU64,
    /// How many of the reconnections were to all servers there are.
    connections: AtomicU64,
    unseen: AtomicBool,
}

impl Outage {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Observed {
            epoch: Instant::now(),
            last: AtomicU64::new(0),
            reconnections: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            unseen: AtomicBool::new(false),
        }))
    }

    /// Notes that the store fails now.
    pub(crate) fn mark(&self) {
        self.0.last.fetch_max(self.now_us() + 1, Ordering::SeqCst);
    }

    /// Notes that the connection was made again, so that what failed before may work now.
    pub(crate) fn mark_connection(&self) {
        self.0.connections.fetch_add(1, Ordering::SeqCst);
        self.mark_reconnection();
    }

    /// Notes that a connection breaks and is made again, perhaps to one of several servers, which
    /// may have lost its memory.
    pub(crate) fn mark_reconnection(&self) {
        self.0.reconnections.fetch_add(1, Ordering::SeqCst);
        self.mark();
    }

    /// Notes that the connection reconnects by itself and does not say so.
    pub(crate) fn may_be_unseen(&self) {
        self.0.unseen.store(true, Ordering::SeqCst);
    }

    /// Returns how often the connection to all servers was made again.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::SeqCst)
    }

    /// Returns how often a connection was made again.
    pub(crate) fn reconnections(&self) -> u64 {
        self.0.reconnections.load(Ordering::SeqCst)
    }

    /// Tells whether a log of the request may reach back to the last outage.
    pub(crate) fn matters_to(&self, check: &Check) -> bool {
        if self.0.unseen.load(Ordering::Relaxed) {
            return true;
        }
        let last = self.0.last.load(Ordering::SeqCst);
        let longest_windows_us = check.logs.iter().map(|log| log.policy.longest_window_us());
        last > 0 && self.now_us() < last.saturating_add(longest_windows_us.max().unwrap_or(0))
    }

    fn now_us(&self) -> u64 {
        micros(self.0.epoch.elapsed())
    }
}
