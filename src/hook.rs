//! [`Hook`]: a closure of the application that is told of events, and can't break what tells it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A closure that is told of events. Its panics are caught and counted.
///
/// Clones share the closure and the count.
pub(crate) struct Hook<E> {
    call: Arc<dyn Fn(&E) + Send + Sync>,
    panics: Arc<AtomicU64>,
    report: fn(),
}

impl<E> Hook<E> {
    /// Creates a hook; `report` is called after each panic of `call`.
    pub(crate) fn new(call: impl Fn(&E) + Send + Sync + 'static, report: fn()) -> Self {
        Self { call: Arc::new(call), panics: Arc::default(), report }
    }

    /// Tells the closure of an event.
    pub(crate) fn tell(&self, event: &E) {
        // The closure alone sees what it may have left half changed.
        if catch_unwind(AssertUnwindSafe(|| (self.call)(event))).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            (self.report)();
        }
    }

    /// Returns how many times the closure has panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

impl<E> Clone for Hook<E> {
    fn clone(&self) -> Self {
        Self { call: self.call.clone(), panics: self.panics.clone(), report: self.report }
    }
}
