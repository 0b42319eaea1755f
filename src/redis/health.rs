//! [`Health`]: when Redis failed last, and whether it may have lost data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::micros;

/// What a store knows of its Redis. The circuit breaker and the calls keep it up to date.
///
/// Redis may have lost data if a connection finds another process than the last one did, as after a
/// restart or a failover, or if the mark of the prefix is gone, as after `FLUSHALL`. A connection that
/// breaks and finds the same process and mark has lost nothing. On a Cluster each broken connection to a
/// node counts as a loss, because the client makes it again by itself, and so does a node that has lost its slots to
/// another one, and each new connection to the Cluster.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Record>);

#[derive(Debug)]
struct Record {
    epoch: Instant,
    failures: Events,
    losses: Events,
    connections: AtomicU64,
    server: Mutex<Option<Server>>,
}

/// Events of one kind: how many there were, and when the last one was.
#[derive(Debug, Default)]
struct Events {
    count: AtomicU64,
    /// In microseconds since the epoch plus 1. 0 if there was none.
    last_us: AtomicU64,
}

/// What tells whether a server still has the data that it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The identity of the process, if Redis tells it.
    pub(super) run_id: Option<String>,
    pub(super) mark: String,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Record {
            epoch: Instant::now(),
            failures: Events::default(),
            losses: Events::default(),
            connections: AtomicU64::new(0),
            server: Mutex::default(),
        }))
    }

    /// Records that a call failed, or that a request was decided without Redis.
    pub(crate) fn record_failure(&self) {
        self.record(&self.0.failures);
    }

    /// Records that a connection to a Cluster, or to a node of it, was broken and is made again.
    pub(crate) fn record_loss(&self) {
        self.record(&self.0.losses);
        self.record_failure();
    }

    /// Records a new connection.
    pub(super) fn record_connection(&self) {
        self.0.connections.fetch_add(1, Ordering::SeqCst);
        self.record_failure();
    }

    /// Takes note of the server behind the connection. Records a loss if it is not the one of before.
    pub(super) fn see(&self, server: Server) {
        let mut known = self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &Server| known.run_id.is_some() && *known == server;
        if known.as_ref().is_some_and(|known| !is_same(known)) {
            self.record_loss();
        }
        *known = Some(server);
    }

    /// Takes note of the mark on the connection in use. Records a loss if it is another one.
    pub(super) fn see_mark(&self, mark: String) {
        let mut known = self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut *known
            && known.mark != mark
        {
            known.mark = mark;
            self.record_loss();
        }
    }

    /// Returns the number of failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.0.failures.count.load(Ordering::SeqCst)
    }

    /// Returns the number of losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.0.losses.count.load(Ordering::SeqCst)
    }

    /// Returns how often a connection was made again.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::SeqCst)
    }

    /// Returns whether the last failure was less than a length of time ago.
    pub(crate) fn has_failed_within(&self, time_us: u64) -> bool {
        let last_us = self.0.failures.last_us.load(Ordering::SeqCst);
        last_us > 0 && self.now_us() < last_us.saturating_add(time_us)
    }

    /// Returns how long ago the last loss was, or `None` if there was none.
    pub(crate) fn since_loss(&self) -> Option<Duration> {
        let last_us = self.0.losses.last_us.load(Ordering::SeqCst);
        (last_us > 0).then(|| Duration::from_micros(self.now_us().saturating_sub(last_us - 1)))
    }

    fn record(&self, events: &Events) {
        // The instant first: whoever sees the number sees it too.
        events.last_us.fetch_max(self.now_us() + 1, Ordering::SeqCst);
        events.count.fetch_add(1, Ordering::SeqCst);
    }

    fn now_us(&self) -> u64 {
        micros(self.0.epoch.elapsed())
    }
}
