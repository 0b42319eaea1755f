use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::store::{Check, Store};

/// The place a request has taken or is about to take, until it is known whether it keeps it.
///
/// Given back when dropped, so that the cancellation is not lost when the client goes away.
pub(super) struct Charge(Option<(Arc<dyn Store>, Arc<Check>)>);

impl Charge {
    pub(super) fn new(store: Arc<dyn Store>, check: Arc<Check>) -> Self {
        Self(Some((store, check)))
    }

    /// Lets the request count.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }

    /// Takes the request back, in the background if the store can't answer at once.
    ///
    /// The cancellation goes on if the handle is dropped.
    pub(super) fn cancel(mut self) -> Option<JoinHandle<()>> {
        self.cancel_now()
    }

    fn cancel_now(&mut self) -> Option<JoinHandle<()>> {
        let (store, check) = self.0.take()?;
        let answer = match store.cancel(&check).into_ready() {
            Ok(_) => return None,
            Err(later) => later,
        };
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            // What can't be cancelled now, the store itself is to see to.
            let _ = answer.await;
        }))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.cancel_now();
    }
}
