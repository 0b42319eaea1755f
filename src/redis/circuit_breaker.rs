//! [`CircuitBreaker`]: the connection to Redis, given up when it fails and made again in the
//! background.

mod state;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::time::{Sleep, sleep};

use self::state::{Shared, State};
use super::connection::{Connection, Connector};
use super::outage::Outage;
use crate::error::StoreError;

/// A connection shared by all requests, with a circuit breaker.
///
/// - A connection that breaks is made again at once. Calls wait for the first attempt, for at most
///   the response timeout, and fail at once when it has failed.
/// - A connection on which five replies in a row do not arrive is given up. The calls that wait on
///   it fail with it.
/// - While there is no connection, calls fail at once. A background task makes one attempt at a
///   time, with growing pauses. An attempt succeeds when the server replies to a PING.
#[derive(Clone)]
pub(crate) struct CircuitBreaker(Arc<Shared>);

impl CircuitBreaker {
    pub(crate) fn new(connector: Connector, response_timeout: Duration, outage: Outage) -> Self {
        Self(Arc::new(Shared::new(connector, response_timeout, outage)))
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

    pub(crate) fn set_ready(&self, connection: Connection) {
        self.0.set_ready(connection);
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.0.connector.is_cluster()
    }

    /// Makes a call, and waits for the reply for at most the response timeout. A failure counts for
    /// each of the requests in it.
    pub(crate) async fn call<T>(
        &self,
        requests: usize,
        request: impl AsyncFnOnce(Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut deadline = pin!(sleep(self.0.response_timeout));
        let (connection, number, changed) = self.connection(deadline.as_mut()).await?;
        let (mut request, mut changed) = (pin!(request(connection)), pin!(changed));
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
            deadline.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        });
        let result = result.await;
        self.0.record_result(number, requests, &result);
        result
    }

    /// Returns the connection, its number, and a future that ends when the state changes.
    async fn connection(
        &self,
        mut deadline: Pin<&mut Sleep>,
    ) -> Result<(Connection, u64, Notified<'_>), StoreError> {
        loop {
            // Created before the state is read, so that no change between the two is missed.
            let changed = self.0.changed.notified();
            match &**self.0.state.load() {
                State::Ready { connection, number, .. } => {
                    return Ok((connection.clone(), *number, changed));
                }
                state if state.is_idle() => {
                    self.0.connect_if_idle();
                    return Err(StoreError::Unavailable);
                }
                State::Connecting(_) => {}
                State::Failed(_) | State::Idle => return Err(StoreError::Unavailable),
            }
            let mut changed = pin!(changed);
            let wait = poll_fn(|cx| match changed.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => deadline.as_mut().poll(cx).map(|()| Err(StoreError::Timeout)),
            });
            wait.await?;
        }
    }
}
