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

use self::state::{Shared, State};
use super::connection::{Connection, Connector, read_mark};
use super::health::Health;
use super::reply;
use crate::error::StoreError;

/// A connection shared by all requests, with a circuit breaker.
///
/// - The first connection is made when it is needed, and one that breaks is made again at once. Calls wait for
///   the first attempt, for at most the response timeout, and fail at once when it has failed.
/// - A connection that is silent is given up: calls wait on it, and no reply to any of them arrives
///   for the response timeout. The calls that wait on it fail with it. A late reply is none of that:
///   while others arrive, a call waits for its own.
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
    /// no connection.
    pub(super) fn watch_data(&self) {
        if self.0.pace.is_due(Duration::from_secs(1)) {
            self.look_for_data();
        }
    }

    /// Looks in the background whether the data is still there.
    pub(super) fn look_for_data(&self) {
        let breaker = self.clone();
        tokio::spawn(async move {
            let look = async |mut connection: Connection| {
                read_mark(&mut connection, &breaker.0.mark).await.map_err(reply::error)
            };
            if let Ok(mark) = breaker.call(look).await {
                breaker.0.see_mark(mark);
            }
        });
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    /// Returns how many calls have had a reply.
    pub(super) fn replies(&self) -> u64 {
        self.0.replies()
    }

    /// Makes a call, and waits for the reply until the connection is silent or broken.
    pub(crate) async fn call<T>(
        &self,
        request: impl AsyncFnOnce(Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (connection, number, changed) = self.connection().await?;
        let mut watch = Watch(Some(self));
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
            }
            silence.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        });
        let result = result.await;
        watch.0 = None;
        self.0.record_result(number, &result);
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
struct Watch<'a>(Option<&'a CircuitBreaker>);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(breaker) = self.0
            && let Ok(runtime) = Handle::try_current()
            && !breaker.0.is_probing.swap(true, Ordering::Relaxed)
        {
            let probe = Probe(breaker.clone());
            runtime.spawn(async move {
                let ping = async |mut connection: Connection| {
                    redis::cmd("PING").exec_async(&mut connection).await.map_err(reply::error)
                };
                // What it finds out, the circuit breaker knows.
                let _ = probe.0.call(ping).await;
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
            *this.looks = if seen == *this.seen { *this.looks + 1 } else { 0 };
            if *this.looks == Self::LOOKS {
                return Poll::Ready(());
            }
            this.next.set(sleep(this.shared.response_timeout / Self::LOOKS));
        }
        Poll::Pending
    }
}
