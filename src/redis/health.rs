//! [`Health`]: whether Redis is there, and whether it may have lost data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry;

/// What a store knows of its Redis. The circuit breaker and the calls keep it up to date.
///
/// Redis may have lost data if its replication ID (`master_replid`) has changed, as after a restart or a failover, or if the
/// mark of the prefix is gone, as after `FLUSHALL`. A connection that breaks and finds the same two has lost nothing. It may
/// also have lost data if another node of a Cluster has taken the place of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    /// How many losses of data there were.
    losses: u64,
    /// When the last one was.
    lost_at: Option<Instant>,
    /// How many connections are lost.
    lost_connections: usize,
    /// Whether it was reported last that there is a connection.
    is_available: bool,
}

impl Health {
    /// Records that Redis may have lost data.
    pub(crate) fn record_loss(&self) {
        let mut record = self.record();
        record.losses += 1;
        record.lost_at = Some(Instant::now());
    }

    /// Takes note that there is no connection to a server, until the result is dropped.
    pub(super) fn lose_connection(&self) -> LostConnection {
        let mut record = self.record();
        record.lost_connections += 1;
        record.is_available = false;
        LostConnection(self.clone())
    }

    /// Reports that Redis is there again if no connection is lost any more.
    pub(super) fn find_connection(&self) {
        let mut record = self.record();
        if record.lost_connections == 0 && !std::mem::replace(&mut record.is_available, true) {
            drop(record);
            telemetry::store_found();
        }
    }

    /// Returns the number of losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.record().losses
    }

    /// Returns how long ago the last loss was, or `None` if there was none.
    pub(crate) fn since_loss(&self) -> Option<Duration> {
        self.record().lost_at.map(|at| at.elapsed())
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is lost and not there again, to a server that is needed.
pub(super) struct LostConnection(Health);

impl Drop for LostConnection {
    fn drop(&mut self) {
        self.0.record().lost_connections -= 1;
        telemetry::connection_found();
    }
}
