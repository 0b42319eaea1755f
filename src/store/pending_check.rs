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

impl PendingCheck {
    /// Sends a check to the store. Returns its outcome if the store has decided at once, else the pending
    /// check.
    #[inline]
    pub(crate) fn send(
        store: &Arc<dyn Store>,
        check: &Check,
        is_cancellable: bool,
    ) -> Result<Result<Outcome, StoreError>, Self> {
        store.admit(check).into_ready().map_err(|outcome| {
            let cancel = is_cancellable.then(|| CancelHandle::new(store, check));
            Self { outcome, cancel }
        })
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, StoreError>> {
        let outcome = ready!(self.outcome.as_mut().poll(cx));
        self.cancel = None;
        Poll::Ready(outcome)
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
                let _ = cancel.0.store.cancel(&cancel.0.check).await;
            }
        });
    }
}

/// Returns whether the store may have counted a request.
pub(crate) fn may_have_counted(outcome: &Result<Outcome, StoreError>) -> bool {
    match outcome {
        Ok(outcome) => outcome.admitted,
        Err(error) => error.may_have_counted(),
    }
}

/// Removes a request from its logs. If the handle is dropped, the request stays counted.
///
/// Boxed, because few layers cancel requests, and the future of every request has room for it.
pub(crate) struct CancelHandle(Box<Cancellable>);

struct Cancellable {
    store: Arc<dyn Store>,
    check: Check,
}

impl CancelHandle {
    pub(crate) fn new(store: &Arc<dyn Store>, check: &Check) -> Self {
        Self(Box::new(Cancellable { store: store.clone(), check: check.clone() }))
    }

    /// Cancels the admission. If the store can't do so at once, a background task waits for it.
    ///
    /// Dropping the returned handle does not stop the task.
    pub(crate) fn cancel(self) -> Option<JoinHandle<()>> {
        let outcome = match self.0.store.cancel(&self.0.check).into_ready() {
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

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::policy::Policy;
    use crate::quota::Quota;
    use crate::store::faulty::Faulty;
    use crate::window::LogId;

    #[tokio::test(start_paused = true)]
    async fn decided_check_leaves_no_task() {
        let slow = Faulty::new();
        slow.work(Duration::from_millis(1));
        let store: Arc<dyn Store> = Arc::new(slow);
        let policy = Arc::new(Policy::from(Quota::per_minute(5)));
        let check = Check::new([LogId::new(policy, "alice")]);
        let Err(mut pending) = PendingCheck::send(&store, &check, true) else {
            panic!("the store needs a millisecond")
        };
        assert!(poll_fn(|cx| pending.poll(cx)).await.unwrap().admitted);
        drop(pending);
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}
