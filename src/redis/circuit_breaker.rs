//! [`CircuitBreaker`]: the connection to Redis, given up when it fails and made again in the
//! background.

mod state;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::sync::futures::Notified;
use tokio::time::{Sleep, sleep};

use self::state::{Shared, State, is_cluster_down};
use super::connection::{Connection, Connector, read_mark};
use super::health::Health;
use super::node::Node;
use super::reply;
use crate::error::StoreError;

/// A connection shared by all requests, with a circuit breaker.
///
/// - The first connection is made when it is needed, and one that breaks is made again at once. Calls wait for
///   the first attempt, for at most the response timeout, and fail at once when it has failed.
/// - A connection that is silent is given up: calls wait on it, and no reply to any of them arrives
///   for the response timeout. The calls that wait on it fail with it. A late reply is none of that:
///   while others arrive, a call waits for its own.
/// - A connection to a Cluster has several servers, of which one may be silent. There each call has the
///   response timeout for itself. If its node has replied to no other meanwhile, calls to that node fail at once from
///   then on, and a background task asks it until it replies, or another node has its slots. The same if it says that the
///   Cluster is down. If the node of the call is not known, five in a row without a reply are one silence, unless a
///   node is known to be silent.
/// - While there is no connection, calls fail at once. A background task makes one attempt at a
///   time, with growing pauses. An attempt succeeds when the server replies to a PING.
#[derive(Clone)]
pub(crate) struct CircuitBreaker(Arc<Shared>);

impl CircuitBreaker {
    /// Creates a circuit breaker without a connection. `mark` is the name of the mark that is lost when
    /// the data is.
    pub(crate) fn new(
        connector: Connector,
        response_timeout: Duration,
        health: Health,
        mark: String,
    ) -> Self {
        Self(Arc::new(Shared::new(connector, response_timeout, health, mark)))
    }

    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        let connection = self.0.connect().await?;
        self.0.set_ready(connection);
        Ok(())
    }

    /// Starts to connect in the background. Does nothing outside a runtime.
    pub(crate) fn connect_in_background(&self) {
        self.0.connect_if_idle();
    }

    /// Looks whether the data is still there, once a second while the store is in use: `FLUSHALL` breaks
    /// no connection. On a Cluster, whether the same nodes have the slots.
    pub(super) fn watch_data(&self) {
        if self.is_cluster() {
            self.watch_nodes();
        } else if self.0.is_look_due() {
            let breaker = self.clone();
            tokio::spawn(async move {
                let look = async |mut connection| {
                    let mark = read_mark(&mut connection, &breaker.0.mark).await;
                    mark.map_err(reply::error)
                };
                if let Ok(mark) = breaker.call(None, look).await {
                    breaker.0.health.see_mark(mark);
                }
            });
        }
    }

    /// Looks which node of a Cluster has which slot, at most once a second.
    pub(super) fn watch_nodes(&self) {
        #[cfg(feature = "cluster")]
        if self.is_cluster() && self.0.is_look_due() {
            let breaker = self.clone();
            tokio::spawn(async move {
                let look = async |mut connection| {
                    breaker.0.read_nodes(&mut connection).await.map_err(reply::error)
                };
                // After a failure, the nodes are as they were.
                let _ = breaker.call(None, look).await;
                breaker.0.follow_nodes().await;
            });
        }
    }

    /// Returns the node of a Cluster that has a Redis key, if it is known.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "there is one server"))]
    pub(super) fn node_of(&self, name: &[u8]) -> Option<Arc<Node>> {
        #[cfg(feature = "cluster")]
        return self.0.nodes.of(name);
        #[cfg(not(feature = "cluster"))]
        None
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    /// Returns how many calls have had a reply.
    pub(super) fn replies(&self) -> u64 {
        self.0.replies()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.0.connector.is_cluster()
    }

    /// Makes a call, and waits for the reply until the connection is silent or broken. `node` is that of a Cluster, if it
    /// is known.
    pub(crate) async fn call<T>(
        &self,
        node: Option<Arc<Node>>,
        request: impl AsyncFnOnce(Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (connection, number, changed) = self.connection().await?;
        let is_silent = || node.as_ref().is_some_and(|node| node.is_silent());
        if is_silent() {
            return Err(StoreError::Unavailable);
        }
        let replies = node.as_ref().map_or(0, |node| node.replies());
        let mut watch = Watch { breaker: Some(self), node: node.as_ref() };
        let (mut request, mut changed) = (pin!(request(connection)), pin!(changed));
        let mut silence = pin!(Silence::begin(&self.0));
        let result = poll_fn(|cx| {
            if let Poll::Ready(result) = request.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            // The notification may be about this connection: see "Interleavings" in `state.rs`.
            while changed.as_mut().poll(cx).is_ready() {
                changed.set(self.0.changed.notified());
                if !self.0.is_ready(number) {
                    let message = "the connection was given up".to_owned();
                    return Poll::Ready(Err(StoreError::Disconnected { message }));
                }
                if is_silent() {
                    return Poll::Ready(Err(StoreError::Timeout));
                }
            }
            silence.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        });
        let result = result.await;
        watch.breaker = None;
        if is_silent() {
            return result;
        }
        // Not if the node has replied to others: the call may have been redirected to a node that is silent, or back
        // and forth while its slot moves. A node that serves nobody replies, too.
        let is_down = result.as_ref().is_err_and(is_cluster_down);
        let is_its = |node: &&Arc<Node>| result.is_ok() || is_down || node.replies() == replies;
        let known = node.as_ref().filter(is_its);
        self.0.record_result(number, known, &result);
        result
    }

    /// Waits for a connection as a call does.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        self.connection().await.map(|_| ())
    }

    /// Returns the connection, its number, and a future that ends when the state changes.
    async fn connection(&self) -> Result<(Connection, u64, Notified<'_>), StoreError> {
        let mut deadline = pin!(sleep(self.0.response_timeout));
        loop {
            // Created before the state is read, so that no change between the two is missed.
            let changed = self.0.changed.notified();
            match &**self.0.state.load() {
                State::Ready { connection, number, .. } => {
                    return Ok((connection.clone(), *number, changed));
                }
                State::Connecting(attempt) if attempt.strong_count() > 0 => {}
                State::Idle if Handle::try_current().is_ok() => {
                    self.0.connect_if_idle();
                    continue;
                }
                _ => {
                    self.0.connect_if_idle();
                    return Err(StoreError::Unavailable);
                }
            }
            let mut changed = pin!(changed);
            let wait = poll_fn(|cx| match changed.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => deadline.as_mut().poll(cx).map(|()| Err(StoreError::Unavailable)),
            });
            wait.await?;
        }
    }
}

/// Watches the connection in place of a caller that leaves before its reply: a PING waits on, whose
/// reply comes after all earlier ones. Otherwise callers with little patience would never find out that
/// a server is silent.
struct Watch<'a> {
    breaker: Option<&'a CircuitBreaker>,
    node: Option<&'a Arc<Node>>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(breaker) = self.breaker
            && (!breaker.is_cluster() || self.node.is_some())
            && let Ok(runtime) = Handle::try_current()
            && !breaker.0.is_probing.swap(true, Ordering::Relaxed)
        {
            let (probe, node) = (Probe(breaker.clone()), self.node.cloned());
            runtime.spawn(async move {
                let ping = async |connection| {
                    probe.0.0.ping(connection, node.as_deref()).await.map_err(reply::error)
                };
                // What it finds out, the circuit breaker knows.
                let _ = probe.0.call(node.clone(), ping).await;
            });
        }
    }
}

/// A PING, until it has its reply or its runtime ends.
struct Probe(CircuitBreaker);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.0.is_probing.store(false, Ordering::Relaxed);
    }
}

pin_project! {
    /// Resolves when a connection has been silent for the response timeout.
    ///
    /// It looks a few times within that time whether a reply has arrived. A process that stands still,
    /// because its machine is busy, looks once when it goes on, and reads what has arrived before the
    /// next look. So it does not take its own delay for one of the server.
    struct Silence<'a> {
        shared: &'a Shared,
        seen: u64,
        looks: u32,
        #[pin]
        next: Sleep,
    }
}

impl<'a> Silence<'a> {
    const LOOKS: u32 = 5;

    fn begin(shared: &'a Shared) -> Self {
        let next = sleep(shared.response_timeout / Self::LOOKS);
        Self { shared, seen: shared.replies(), looks: 0, next }
    }
}

impl Future for Silence<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while this.next.as_mut().poll(cx).is_ready() {
            let seen = std::mem::replace(this.seen, this.shared.replies());
            // Replies of other nodes say nothing of the node that this call waits for.
            let is_silent = seen == *this.seen || this.shared.connector.is_cluster();
            *this.looks = if is_silent { *this.looks + 1 } else { 0 };
            if *this.looks == Self::LOOKS {
                return Poll::Ready(());
            }
            this.next.set(sleep(this.shared.response_timeout / Self::LOOKS));
        }
        Poll::Pending
    }
}
