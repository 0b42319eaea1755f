//! [`PendingCheck`], which waits for an outcome, and [`CancelHandle`], which cancels an admission.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{future, mem};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Store;
use super::future::Later;
use crate::error::StoreError;
use crate::window::{Check, Outcome};

/// A check that was sent to the store and has no outcome yet.
///
/// If a cancellable check is dropped before its outcome arrives, a background task waits for the
/// outcome and then cancels the admission. Sending the cancellation at once would be wrong: it could
/// reach the store before the check, and on a Redis Cluster it could find only some of the entries
/// that the check records.
pub(crate) struct PendingCheck {
    outcome: Later<Outcome>,
    cancel: Option<CancelHandle>,
}

/// A check that was sent.
pub(crate) enum Sent {
    /// The store has decided at once. The handle cancels an admission.
    Decided(Result<Outcome, StoreError>, Option<CancelHandle>),
    Pending(PendingCheck),
}

impl PendingCheck {
    /// Sends a check to the store.
    #[inline]
    pub(crate) fn send(store: &Arc<dyn Store>, check: &Arc<Check>, is_cancellable: bool) -> Sent {
        match store.admit(check).into_ready() {
            Ok(outcome) => {
                let is_cancellable = is_cancellable && may_have_counted(&outcome);
                let cancel = is_cancellable.then(|| CancelHandle::new(store, check));
                Sent::Decided(outcome, cancel)
            }
            Err(outcome) => {
                let cancel = is_cancellable.then(|| CancelHandle::new(store, check));
                Sent::Pending(Self { outcome, cancel })
            }
        }
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Result<Outcome, StoreError>, Option<CancelHandle>)> {
        let outcome = ready!(self.outcome.as_mut().poll(cx));
        let cancel = self.cancel.take().filter(|_| may_have_counted(&outcome));
        Poll::Ready((outcome, cancel))
    }
}

impl Drop for PendingCheck {
    fn drop(&mut self) {
        let Some(cancel) = self.cancel.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let outcome = mem::replace(&mut self.outcome, Box::pin(future::pending()));
        runtime.spawn(async move {
            if may_have_counted(&outcome.await) {
                // A cancellation that fails is part of the store's write-back.
                let _ = cancel.store.cancel(&cancel.check).await;
            }
        });
    }
}

fn may_have_counted(outcome: &Result<Outcome, StoreError>) -> bool {
    match outcome {
        Ok(outcome) => outcome.admitted,
        Err(error) => error.may_have_counted(),
    }
}

/// Removes a request from its logs. If the handle is dropped, the request stays counted.
pub(crate) struct CancelHandle {
    store: Arc<dyn Store>,
    check: Arc<Check>,
}

impl CancelHandle {
    pub(crate) fn new(store: &Arc<dyn Store>, check: &Arc<Check>) -> Self {
        Self { store: store.clone(), check: check.clone() }
    }

    /// Cancels the admission. If the store can't do so at once, a background task waits for it.
    ///
    /// Dropping the returned handle does not stop the task.
    pub(crate) fn cancel(self) -> Option<JoinHandle<()>> {
        let outcome = match self.store.cancel(&self.check).into_ready() {
            Ok(_) => return None,
            Err(later) => later,
        };
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            // A cancellation that fails is part of the store's write-back.
            let _ = outcome.await;
        }))
    }
}
