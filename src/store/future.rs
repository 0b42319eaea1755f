//! [`StoreFuture`]: the future of a store's result.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{StoreError, task_has_ended};

/// The future of a store's result.
///
/// A result that is ready at once costs no allocation.
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(State<T>);

enum State<T> {
    Ready(Ready<Result<T, StoreError>>),
    Pending(Later<T>),
}

/// The future of a result that is not ready at once. It is small, unlike a result.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl<T> StoreFuture<T> {
    /// Creates a future that is ready at once.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self(State::Ready(ready(result)))
    }

    /// Returns the result if it is ready, else its future.
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, Later<T>> {
        match self.0 {
            State::Ready(result) => Ok(result.into_inner()),
            State::Pending(later) => Err(later),
        }
    }

    /// Creates a future that boxes another one.
    pub fn later(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }
}

/// Polls a future once, so that what it sends is sent before what comes later. A task ends it if it is not over,
/// also if nobody waits for that.
pub(crate) fn begin<F>(future: F, runtime: &Handle) -> Result<F::Output, JoinHandle<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Ok(result),
        Poll::Pending => Err(runtime.spawn(future)),
    }
}

/// Runs a change to its end, also if the caller leaves. Without a runtime the caller alone polls it.
pub(crate) async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let Ok(runtime) = Handle::try_current() else { return change.await };
    match begin(change, &runtime) {
        Ok(result) => result,
        // With its runtime, or by a panic.
        Err(task) => task
            .await
            .unwrap_or_else(|_| Err(StoreError::Uncertain { error: Box::new(task_has_ended()) })),
    }
}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Pending(future) => future.as_mut().poll(cx),
            State::Ready(result) => Pin::new(result).poll(cx),
        }
    }
}

impl<T> std::fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "StoreFuture(ready)",
            State::Pending(_) => "StoreFuture(pending)",
        })
    }
}
