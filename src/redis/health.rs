//! [`Health`]: whether Redis is there, and whether it may have lost data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry;
use crate::time::micros;

/// What a store knows of its Redis. The circuit breaker and the calls keep it up to date.
///
/// Redis may have lost data if a connection finds another process than the last one did, as after a
/// restart or a failover, if the mark of the prefix is gone, as after `FLUSHALL`, or if its replication ID
/// (`master_replid`) has changed. A connection that breaks and finds the same three has lost nothing. It may also have
/// lost data if another node of a Cluster has taken the place of one.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Record>);

#[derive(Debug)]
struct Record {
    epoch: Instant,
    /// How many losses of data there were.
    losses: AtomicU64,
    /// When the last one was, in microseconds since the epoch plus 1. 0 if there was none.
    lost_us: AtomicU64,
    /// How many connections are lost.
    lost: AtomicUsize,
    /// Whether it was reported last that there is a connection.
    is_available: AtomicBool,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Record {
            epoch: Instant::now(),
            losses: AtomicU64::new(0),
            lost_us: AtomicU64::new(0),
            lost: AtomicUsize::new(0),
            is_available: AtomicBool::new(false),
        }))
    }

    /// Records that Redis may have lost data.
    pub(crate) fn record_loss(&self) {
        // The instant first: whoever sees the number sees it too.
        self.0.lost_us.fetch_max(self.now_us() + 1, Ordering::SeqCst);
        self.0.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes note that there is no connection to a server, and reports it.
    pub(super) fn lose_connection(&self, error: &str) {
        self.0.lost.fetch_add(1, Ordering::SeqCst);
        self.0.is_available.store(false, Ordering::SeqCst);
        telemetry::store_lost(error);
    }

    /// Takes note that a lost connection is there again, or that nobody needs it.
    pub(super) fn forget_lost_connection(&self) {
        self.0.lost.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reports that Redis is there again if no connection is lost any more.
    pub(super) fn find_connection(&self) {
        if self.0.lost.load(Ordering::SeqCst) == 0
            && !self.0.is_available.swap(true, Ordering::SeqCst)
        {
            telemetry::store_found();
        }
    }

    /// Returns the number of losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.0.losses.load(Ordering::SeqCst)
    }

    /// Returns how long ago the last loss was, or `None` if there was none.
    pub(crate) fn since_loss(&self) -> Option<Duration> {
        let lost_us = self.0.lost_us.load(Ordering::SeqCst);
        (lost_us > 0).then(|| Duration::from_micros(self.now_us().saturating_sub(lost_us - 1)))
    }

    fn now_us(&self) -> u64 {
        micros(self.0.epoch.elapsed())
    }
}
