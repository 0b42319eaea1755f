//! A store that counts its checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tower_sliding_window::Explanation;
use tower_sliding_window::MemoryStore;
use tower_sliding_window::store::{Check, LogId, Outcome, Store, StoreFuture};

/// A memory store that counts the checks, and may take its time to reply.
#[derive(Clone, Default)]
pub(crate) struct Counting {
    pub(crate) store: MemoryStore,
    pub(crate) checks: Arc<AtomicUsize>,
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    /// If set, replies are held back until it is notified.
    pub(crate) hold: Option<Arc<Notify>>,
}

impl Counting {
    pub(crate) fn checks(&self) -> usize {
        self.checks.load(Ordering::Relaxed)
    }
}

impl Store for Counting {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            tokio::time::sleep(this.before).await;
            let outcome = this.store.admit(&check).await;
            if let Some(hold) = &this.hold {
                hold.notified().await;
            }
            tokio::time::sleep(this.after).await;
            outcome
        })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.store.peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        self.store.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        self.store.settle(check, cost)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.store.reset(logs)
    }
}
