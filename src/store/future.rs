//! [`StoreFuture`]: an answer, now or later.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::StoreError;

/// The answer of a store, now or later.
///
/// An answer from memory costs no allocation.
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(Answer<T>);

enum Answer<T> {
    Now(Option<Result<T, StoreError>>),
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> StoreFuture<T> {
    /// Creates an answer that is there already.
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Answer::Now(Some(answer)))
    }

    /// Returns the answer if it is there already, else what has to be waited for.
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            Answer::Now(Some(answer)) => Ok(answer),
            answer => Err(Self(answer)),
        }
    }

    /// Shows the answer to `look` when it is there, unless it is an error; drops `look` in any case.
    pub(crate) fn inspect(self, look: impl FnOnce(&T) + Send + 'static) -> Self
    where
        T: Send + 'static,
    {
        match self.0 {
            Answer::Now(Some(Ok(answer))) => {
                look(&answer);
                Self::ready(Ok(answer))
            }
            Answer::Now(answer) => Self(Answer::Now(answer)),
            Answer::Later(answer) => Self::later(async move {
                let answer = answer.await?;
                look(&answer);
                Ok(answer)
            }),
        }
    }

    /// Creates an answer that has to be waited for.
    pub fn later(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(Answer::Later(Box::pin(answer)))
    }
}

// Nothing is pinned structurally: the answer moves, the boxed future does not.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answer::Now(answer) => Poll::Ready(answer.take().unwrap_or_else(|| {
                Err(StoreError::Protocol { message: "polled after the answer".to_owned() })
            })),
            Answer::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> std::fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Answer::Now(_) => "StoreFuture(ready)",
            Answer::Later(_) => "StoreFuture(pending)",
        })
    }
}
