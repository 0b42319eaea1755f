//! [`Faulty`]: a store in process whose calls fail or take time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use super::{
    Check, Explanation, LogId, LogSnapshot, MemoryStore, Outcome, Restored, Store, StoreFuture,
};
use crate::error::StoreError;

/// Returns how long a call about a log takes, or the error with which it fails.
type Behavior = dyn Fn(&str, &LogId) -> Result<Duration, StoreError> + Send + Sync;

#[derive(Clone)]
pub(super) struct Faulty {
    pub(super) store: MemoryStore,
    behavior: Arc<Mutex<Arc<Behavior>>>,
}

impl Faulty {
    pub(super) fn new() -> Self {
        let behavior: Arc<Behavior> = Arc::new(|_, _| Ok(Duration::ZERO));
        Self { store: MemoryStore::new(), behavior: Arc::new(Mutex::new(behavior)) }
    }

    pub(super) fn set_behavior(
        &self,
        behavior: impl Fn(&str, &LogId) -> Result<Duration, StoreError> + Send + Sync + 'static,
    ) {
        *self.behavior.lock().unwrap() = Arc::new(behavior);
    }

    pub(super) fn fail(&self) {
        self.set_behavior(|_, _| Err(StoreError::Unavailable));
    }

    pub(super) fn work(&self, latency: Duration) {
        self.set_behavior(move |_, _| Ok(latency));
    }

    /// Calls the store after half the latency, and returns its result after the other half.
    fn respond<T: Send + 'static>(
        &self,
        name: &'static str,
        log: &LogId,
        call: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let (this, log) = (self.clone(), log.clone());
        StoreFuture::later(async move {
            let behavior = this.behavior.lock().unwrap().clone();
            let latency = behavior(name, &log)?;
            sleep(latency / 2).await;
            let result = call(&this.store).await;
            sleep(latency / 2).await;
            result
        })
    }
}

impl Store for Faulty {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.respond("admit", &check.clone().logs[0], move |store| store.admit(&check))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.respond("peek", &check.clone().logs[0], move |store| store.peek(&check))
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        let check = check.clone();
        self.respond("explain", &check.clone().logs[0], move |store| store.explain(&check))
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let check = check.clone();
        self.respond("settle", &check.clone().logs[0], move |store| store.settle(&check, cost))
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        let (target, snapshot) = (log.clone(), snapshot.clone());
        self.respond("restore", log, move |store| store.restore(&target, &snapshot))
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let targets = logs.to_vec();
        self.respond("reset", &logs[0], move |store| store.reset(&targets))
    }
}
