//! [`OpenConnections`]: which connections are idle, so that those can make room for others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock;

/// Which part of the idle connections is closed at a time, so that not each new client looks at all.
const PART: usize = 64;
/// A request is under way.
const BUSY: u64 = 0;

/// The connections of a listener.
pub(super) struct OpenConnections {
    epoch: Instant,
    open: Mutex<Open>,
    /// Has a permit if a connection may have become idle since the last look.
    became_idle: Notify,
}

#[derive(Default)]
struct Open {
    last_id: u64,
    connections: HashMap<u64, Arc<Activity>>,
}

/// What one connection does.
struct Activity {
    /// Since when it is idle, in microseconds from 1 on, or [`BUSY`].
    idle_since: AtomicU64,
    close: Notify,
}

impl OpenConnections {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { epoch: Instant::now(), open: Mutex::default(), became_idle: Notify::new() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Adds a connection, which is idle until its first request.
    pub(super) fn add(self: &Arc<Self>) -> Connection {
        let idle_since = AtomicU64::new(self.now());
        let activity = Arc::new(Activity { idle_since, close: Notify::new() });
        let mut open = lock(&self.open);
        open.last_id += 1;
        let id = open.last_id;
        open.connections.insert(id, activity.clone());
        Connection { all: self.clone(), id, activity }
    }

    /// Closes those that are idle longest, again whenever one has become idle.
    pub(super) async fn make_room(&self) -> Infallible {
        loop {
            self.close_idle();
            self.became_idle.notified().await;
        }
    }

    fn close_idle(&self) {
        let open = lock(&self.open);
        let since = |activity: &Arc<Activity>| activity.idle_since.load(Ordering::Relaxed);
        let mut idle: Vec<_> = open.connections.values().map(|it| (since(it), it)).collect();
        idle.retain(|(since, _)| *since != BUSY);
        let count = idle.len().div_ceil(PART);
        if count > 0 {
            idle.select_nth_unstable_by_key(count - 1, |(since, _)| *since);
        }
        for (_, activity) in &idle[..count] {
            activity.close.notify_one();
        }
    }
}

/// An open connection. It is closed when this value is dropped.
pub(super) struct Connection {
    all: Arc<OpenConnections>,
    id: u64,
    activity: Arc<Activity>,
}

impl Connection {
    /// Waits until the connection is idle and is to make room for another one.
    pub(super) async fn closed(&self) {
        loop {
            self.activity.close.notified().await;
            // A request may have come meanwhile.
            if self.activity.idle_since.load(Ordering::Relaxed) != BUSY {
                return;
            }
        }
    }

    /// Returns what marks requests of this connection.
    pub(super) fn requests(&self) -> Requests {
        Requests { all: self.all.clone(), activity: self.activity.clone() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.all.open).connections.remove(&self.id);
    }
}

/// The requests of a connection, one at a time.
#[derive(Clone)]
pub(super) struct Requests {
    all: Arc<OpenConnections>,
    activity: Arc<Activity>,
}

impl Requests {
    /// Marks the connection as busy until the value is dropped.
    pub(super) fn begin(&self) -> UnderWay {
        self.activity.idle_since.store(BUSY, Ordering::Relaxed);
        UnderWay(self.clone())
    }
}

/// A request that is under way.
pub(super) struct UnderWay(Requests);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Requests { all, activity } = &self.0;
        activity.idle_since.store(all.now(), Ordering::Relaxed);
        all.became_idle.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn longest_idle_makes_room() {
        let all = OpenConnections::new();
        let mut connections = Vec::new();
        for _ in 0..3 {
            connections.push(all.add());
            advance(Duration::from_secs(1)).await;
        }
        let is_closed = async |index: usize| {
            timeout(Duration::from_millis(1), connections[index].closed()).await.is_ok()
        };
        // The first is idle only since its request, and the second is busy.
        drop(connections[0].requests().begin());
        let under_way = connections[1].requests().begin();
        all.close_idle();
        assert!(!is_closed(0).await && !is_closed(1).await && is_closed(2).await);
        drop(under_way);
    }

    #[tokio::test(start_paused = true)]
    async fn request_keeps_its_connection() {
        let all = OpenConnections::new();
        let connection = all.add();
        all.close_idle();
        // Before the connection sees that, a request comes.
        let under_way = connection.requests().begin();
        let closed = timeout(Duration::from_secs(1), connection.closed()).await;
        assert!(closed.is_err());
        drop(under_way);
        all.close_idle();
        connection.closed().await;
    }
}
