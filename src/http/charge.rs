//! [`Admission`] and [`Charge`]: a place in the logs, from the check to the response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::store::{Check, Outcome, Store, StoreFuture};

/// A check whose outcome is awaited.
///
/// If it is dropped before the outcome is there, and the layer gives places back, a task awaits
/// the outcome and then cancels what was admitted. A cancellation sent beside the check could
/// arrive first, and on a Redis Cluster it could find only a part of what the check records.
pub(super) struct Admission {
    outcome: StoreFuture<Outcome>,
    charge: Option<Charge>,
}

impl Admission {
    /// Sends the check. With `refunds`, its place may be given back.
    pub(super) fn new(store: &Arc<dyn Store>, check: &Arc<Check>, refunds: bool) -> Self {
        let charge = refunds.then(|| Charge { store: store.clone(), check: check.clone() });
        Self { outcome: store.admit(check), charge }
    }

    /// Returns the outcome, and the charge if the request may have been counted.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Result<Outcome, StoreError>, Option<Charge>)> {
        let outcome = ready!(Pin::new(&mut self.outcome).poll(cx));
        let charge = self.charge.take().filter(|_| may_have_counted(&outcome));
        Poll::Ready((outcome, charge))
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let gone = StoreError::Protocol { message: "dropped".to_owned() };
        let outcome = std::mem::replace(&mut self.outcome, StoreFuture::ready(Err(gone)));
        runtime.spawn(async move {
            if may_have_counted(&outcome.await) {
                // What can't be cancelled now, the store itself sees to.
                let _ = charge.store.cancel(&charge.check).await;
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

/// The place that a request has taken, or may have taken. Dropped, the request keeps it.
pub(super) struct Charge {
    store: Arc<dyn Store>,
    check: Arc<Check>,
}

impl Charge {
    /// Gives the place back, in the background if the store can't do so at once.
    ///
    /// The cancellation goes on if the handle is dropped.
    pub(super) fn cancel(self) -> Option<JoinHandle<()>> {
        let outcome = match self.store.cancel(&self.check).into_ready() {
            Ok(_) => return None,
            Err(later) => later,
        };
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            // What can't be cancelled now, the store itself sees to.
            let _ = outcome.await;
        }))
    }
}
