//! [`OpenConnections`]: which connections wait for their clients, so that those can make room for others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;
use tower_sliding_window::Key;

use crate::lock;

/// Which part of the idle connections is closed at a time, so that not each new client looks at all.
const PART: usize = 64;
/// The server works on a request.
const BUSY: u64 = 0;

/// The connections of a listener.
pub(crate) struct OpenConnections {
    epoch: Instant,
    open: Mutex<Open>,
    /// Has a permit if a connection may have become idle since the last look.
    became_idle: Notify,
}

#[derive(Default)]
struct Open {
    last_id: u64,
    /// By the key of the client's address, so that an IPv6 network is one client.
    clients: HashMap<Key, HashMap<u64, Arc<Activity>>>,
}

/// What one connection does.
struct Activity {
    /// Since when it waits for its client, in microseconds from 1 on, or [`BUSY`].
    idle_since: AtomicU64,
    close: Notify,
}

/// A connection that could be closed.
struct Idle<'a> {
    /// The connections of its client, less those of them that are idle longer.
    crowd: usize,
    since: u64,
    activity: &'a Activity,
}

impl OpenConnections {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { epoch: Instant::now(), open: Mutex::default(), became_idle: Notify::new() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Adds a connection, which is idle until its first request.
    pub(super) fn add(self: &Arc<Self>, peer: SocketAddr) -> Connection {
        let idle_since = AtomicU64::new(self.now());
        let activity = Arc::new(Activity { idle_since, close: Notify::new() });
        let client = Key::from(peer);
        let mut open = lock(&self.open);
        open.last_id += 1;
        let id = open.last_id;
        open.clients.entry(client.clone()).or_default().insert(id, activity.clone());
        Connection { client, id, requests: Requests { all: self.clone(), activity } }
    }

    /// Closes idle connections, again whenever one has become idle.
    pub(super) async fn make_room(&self) -> Infallible {
        loop {
            self.close_idle();
            self.became_idle.notified().await;
        }
    }

    /// Closes a part of the idle connections. Each is the one that is idle longest of the client that
    /// has the most connections then.
    pub(crate) fn close_idle(&self) {
        let open = lock(&self.open);
        let mut idle = Vec::new();
        for connections in open.clients.values() {
            let first = idle.len();
            idle.extend(connections.values().filter_map(|activity| {
                let since = activity.idle_since.load(Ordering::Relaxed);
                (since != BUSY).then_some(Idle { crowd: connections.len(), since, activity })
            }));
            let own = &mut idle[first..];
            own.sort_unstable_by_key(|it| it.since);
            for (closed_before, it) in own.iter_mut().enumerate() {
                it.crowd -= closed_before;
            }
        }
        let count = idle.len().div_ceil(PART);
        if count > 0 {
            idle.select_nth_unstable_by_key(count - 1, |it| (Reverse(it.crowd), it.since));
        }
        for it in &idle[..count] {
            it.activity.close.notify_one();
        }
    }
}

/// An open connection. It is closed when this value is dropped.
pub(super) struct Connection {
    client: Key,
    id: u64,
    requests: Requests,
}

impl Connection {
    /// Waits until the connection is idle and is to make room for another one.
    pub(super) async fn closed(&self) {
        let activity = &self.requests.activity;
        loop {
            activity.close.notified().await;
            // A request may have come meanwhile.
            if activity.idle_since.load(Ordering::Relaxed) != BUSY {
                return;
            }
        }
    }

    /// Returns what marks requests of this connection.
    pub(super) fn requests(&self) -> Requests {
        self.requests.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = lock(&self.requests.all.open);
        if let Some(connections) = open.clients.get_mut(&self.client) {
            connections.remove(&self.id);
            if connections.is_empty() {
                open.clients.remove(&self.client);
            }
        }
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
        self.work();
        UnderWay(self.clone())
    }

    /// Marks the connection as idle while the body of a request is waited for.
    pub(super) fn request_body<B>(&self, body: B) -> Watched<B> {
        Watched { body, requests: self.clone(), is_request: true }
    }

    /// Marks the connection as busy while the server has yet to make more of a response: only then it
    /// does not wait for the client to take what there is.
    pub(super) fn response_body<B>(&self, body: B) -> Watched<B> {
        Watched { body, requests: self.clone(), is_request: false }
    }

    fn work(&self) {
        self.activity.idle_since.store(BUSY, Ordering::Relaxed);
    }

    fn wait_for_client(&self) {
        let idle_since = &self.activity.idle_since;
        if idle_since.load(Ordering::Relaxed) == BUSY {
            idle_since.store(self.all.now(), Ordering::Relaxed);
            self.all.became_idle.notify_one();
        }
    }
}

/// A request that is under way.
pub(super) struct UnderWay(Requests);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.wait_for_client();
    }
}

/// A body whose progress marks its connection as busy or idle.
pub(super) struct Watched<B> {
    body: B,
    requests: Requests,
    is_request: bool,
}

impl<B> Watched<B> {
    fn mark(&self, is_pending: bool) {
        if is_pending == self.is_request {
            self.requests.wait_for_client();
        } else {
            self.requests.work();
        }
    }
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.mark(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Watched<B> {
    /// A body that is given up is no longer waited for.
    fn drop(&mut self) {
        self.mark(false);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    fn client(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    #[tokio::test(start_paused = true)]
    async fn longest_idle_makes_room() {
        let all = OpenConnections::new();
        let mut connections = Vec::new();
        for _ in 0..3 {
            connections.push(all.add(client(1)));
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
        let connection = all.add(client(1));
        all.close_idle();
        // Before the connection sees that, a request comes.
        let under_way = connection.requests().begin();
        let closed = timeout(Duration::from_secs(1), connection.closed()).await;
        assert!(closed.is_err());
        drop(under_way);
        all.close_idle();
        connection.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_makes_room_before_others() {
        let all = OpenConnections::new();
        let alone = all.add(client(1));
        advance(Duration::from_secs(1)).await;
        // One IPv6 network is one client, and a busy connection counts too.
        let crowd = ["[2001:db8::1]:80", "[2001:db8::2]:80", "[2001:db8::2]:81"];
        let crowd = crowd.map(|peer| all.add(peer.parse().unwrap()));
        let under_way = crowd[0].requests().begin();
        let is_closed = async |connection: &Connection| {
            timeout(Duration::from_millis(1), connection.closed()).await.is_ok()
        };
        all.close_idle();
        assert!(is_closed(&crowd[1]).await || is_closed(&crowd[2]).await);
        assert!(!is_closed(&alone).await);
        drop((under_way, crowd));
        all.close_idle();
        assert!(is_closed(&alone).await);
        drop(alone);
        assert!(lock(&all.open).clients.is_empty());
    }
}
