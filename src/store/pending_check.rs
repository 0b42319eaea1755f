//! [`PendingCheck`], which waits for an outcome, and [`SettleHandle`], which settles an admission.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{Store, StoreFuture, begin};
use crate::error::StoreError;
use crate::policy::Counts;
use crate::window::{Check, LogId, Outcome};

/// A check that was given to the store and has no outcome yet.
///
/// If it is dropped, an admission that the store has decided at once is cancelled. A check that was never polled was
/// never sent. For one under way a task waits for the outcome and then cancels it: in every log if it is cancellable,
/// otherwise only in those of requests in flight, because nobody else would give their places back. A cancellation
/// that is sent at once could overtake the check, and on a Cluster find only some of its entries.
pub(crate) struct PendingCheck {
    store: Arc<dyn Store>,
    /// Taken when the outcome is there.
    pending: Option<(Check, StoreFuture<Outcome>)>,
    /// The runtime of the first poll. Before that a later outcome has sent nothing.
    runtime: Option<Handle>,
    is_cancellable: bool,
}

impl PendingCheck {
    /// Gives a check to the store, which may decide at once.
    pub(crate) fn send(store: &Arc<dyn Store>, check: Check, is_cancellable: bool) -> Self {
        let outcome = store.admit(&check);
        let pending = Some((check, outcome));
        Self { store: store.clone(), pending, runtime: None, is_cancellable }
    }

    /// Returns the check and its outcome.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Check, Result<Outcome, StoreError>)> {
        let pending = self.pending.as_mut().expect("polled after completion");
        let Poll::Ready(outcome) = Pin::new(&mut pending.1).poll(cx) else {
            if self.runtime.is_none() {
                self.runtime = Handle::try_current().ok();
            }
            return Poll::Pending;
        };
        let check = self.pending.take().map(|(check, _)| check);
        Poll::Ready((check.expect("it was there"), outcome))
    }
}

impl Drop for PendingCheck {
    fn drop(&mut self) {
        let Some((check, outcome)) = self.pending.take() else { return };
        let later = match outcome.into_ready() {
            Ok(outcome) => {
                if may_have_counted(&outcome) {
                    SettleHandle::new(&self.store, check).settle(0);
                }
                return;
            }
            Err(later) => later,
        };
        let Some(runtime) = self.runtime.take() else { return };
        // A caller may leave on a thread of another runtime, or of none.
        let runtime = Handle::try_current().unwrap_or(runtime);
        let is_freed = |log: &LogId| self.is_cancellable || log.policy.counts() == Counts::InFlight;
        if check.logs.iter().any(is_freed) {
            let check = check.part(|index| is_freed(&check.logs[index]));
            let store = self.store.clone();
            runtime.spawn(async move {
                if may_have_counted(&later.await) {
                    // A cancellation that fails is written later by the store.
                    let _ = store.settle(&check, 0).await;
                }
            });
        }
    }
}

/// Returns whether the store may have counted a request.
pub(crate) fn may_have_counted(outcome: &Result<Outcome, StoreError>) -> bool {
    match outcome {
        Ok(outcome) => outcome.admitted,
        Err(error) => error.may_have_counted(),
    }
}

/// Settles a request in its logs. If the handle is dropped, the request stays as it was counted.
///
/// Boxed, because few layers settle requests, and the future of every request has room for it.
pub(crate) struct SettleHandle(Box<Settleable>);

struct Settleable {
    store: Arc<dyn Store>,
    check: Check,
    /// That of the admission, for a permit or a body that is dropped on a thread of none.
    runtime: Option<Handle>,
    /// Held by the settlement that is under way: a store may make the later one of two first.
    turn: Arc<Mutex<()>>,
}

impl SettleHandle {
    pub(crate) fn new(store: &Arc<dyn Store>, check: Check) -> Self {
        let (store, runtime) = (store.clone(), Handle::try_current().ok());
        Self(Box::new(Settleable { store, check, runtime, turn: Arc::default() }))
    }

    pub(crate) fn check(&self) -> &Check {
        &self.0.check
    }

    /// Settles the logs of some kinds only. Returns `None` if the request has none of them.
    pub(crate) fn of(
        store: &Arc<dyn Store>,
        check: &Check,
        has: impl Fn(&LogId) -> bool,
    ) -> Option<Self> {
        let check = check.part(|index| has(&check.logs[index]));
        (!check.logs.is_empty()).then(|| Self::new(store, check))
    }

    /// Settles the request at a cost; 0 cancels it. If the store can't do so at once, a background task waits for
    /// it.
    ///
    /// Dropping the returned handle does not stop the task.
    pub(crate) fn settle(&self, cost: u32) -> Option<JoinHandle<()>> {
        let Settleable { store, check, runtime, turn } = &*self.0;
        // A thread that ends has no place for a runtime any more.
        let has_none = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let _entered = runtime.as_ref().filter(|_| has_none).map(Handle::enter);
        let later = store.settle(check, cost).into_ready().err()?;
        let runtime = Handle::try_current().ok()?;
        // What fails is written later by the store. Begun now: the task may run after the client has its response and
        // has sent its next request.
        let turn = turn.clone();
        let settled = async move {
            let _turn = turn.lock().await;
            drop(later.await);
        };
        match has_none {
            // The runtime of the admission may have ended. Then nothing may be polled in it.
            true => Some(runtime.spawn(settled)),
            // That of a thread may have ended, too, and then a timer panics.
            false => catch_unwind(AssertUnwindSafe(|| begin(settled, &runtime))).ok()?.err(),
        }
    }
}
