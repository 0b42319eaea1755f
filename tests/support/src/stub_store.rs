//! A store that answers as a test wants.

use tower_sliding_window::Explanation;
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{Check, LogId, Outcome, Store, StoreFuture};

/// Responses each check by a function, and keeps nothing.
#[derive(Clone)]
pub struct StubStore<A, C>(pub A, pub C);

impl<A, C> Store for StubStore<A, C>
where
    A: Fn(&Check) -> StoreFuture<Outcome> + Send + Sync + 'static,
    C: Fn() + Send + Sync + 'static,
{
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        (self.0)(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        (self.0)(check)
    }

    fn explain(&self, _: &Check) -> StoreFuture<Vec<Explanation>> {
        StoreFuture::ready(Err(StoreError::Unsupported { what: "explanations" }))
    }

    fn settle(&self, _: &Check, _: u32) -> StoreFuture<bool> {
        (self.1)();
        StoreFuture::ready(Ok(true))
    }

    fn reset(&self, _: &[LogId]) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}
