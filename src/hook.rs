//! [`Hook`]: a closure of the application whose panics are caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A closure that is called with events. Its panics are caught and counted.
///
/// Clones share the closure and the count.
#[derive(Clone)]
pub(crate) struct Hook<E> {
    closure: Arc<dyn Fn(&E) + Send + Sync>,
    panics: Arc<AtomicU64>,
    report_panic: fn(),
}

impl<E> Hook<E> {
    /// Creates a hook. `report_panic` is called after each panic of `closure`.
    pub(crate) fn new(closure: impl Fn(&E) + Send + Sync + 'static, report_panic: fn()) -> Self {
        Self { closure: Arc::new(closure), panics: Arc::default(), report_panic }
    }

    pub(crate) fn call(&self, event: &E) {
        // Unwind safe: only the closure can see the state that its panic left behind.
        if catch_unwind(AssertUnwindSafe(|| (self.closure)(event))).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            (self.report_panic)();
        }
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}
