//! [`Node`]: a node of a Cluster, which may be silent while others reply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A node of a Cluster.
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "there is one server"))]
pub(crate) struct Node {
    pub(super) number: usize,
    pub(super) id: Vec<u8>,
    /// How many calls to it have had a reply.
    replies: AtomicU64,
    /// A reference to the token of the task that watches the node while it is silent. It is dangling when the task
    /// is gone.
    watch: Mutex<Weak<()>>,
}

#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "there is one server"))]
impl Node {
    pub(super) fn new(number: usize, id: Vec<u8>) -> Self {
        Self { number, id, replies: AtomicU64::new(0), watch: Mutex::default() }
    }

    /// Returns whether it is silent: calls to it fail at once.
    pub(super) fn is_silent(&self) -> bool {
        self.watch().strong_count() > 0
    }

    /// Returns the token for the task that watches it from now on, unless there is one.
    pub(super) fn begin_watch(&self) -> Option<Arc<()>> {
        let mut watch = self.watch();
        let token = (watch.strong_count() == 0).then(|| Arc::new(()))?;
        *watch = Arc::downgrade(&token);
        Some(token)
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    pub(super) fn record_reply(&self) {
        self.replies.fetch_add(1, Ordering::Relaxed);
    }

    fn watch(&self) -> MutexGuard<'_, Weak<()>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
