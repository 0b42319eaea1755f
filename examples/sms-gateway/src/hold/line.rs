//! [`Lines`]: what waits for the same thing, in the order in which it came.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use example_support::lock;
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

/// A line for each key that something waits for, and none for others.
pub(super) struct Lines<K>(Arc<Mutex<HashMap<K, Line>>>);

#[derive(Default)]
struct Line {
    length: usize,
    /// Tokio's mutex is fair: the first to wait is the first to have it.
    head: Arc<FairMutex<()>>,
}

impl<K> Default for Lines<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Lines<K> {
    /// Joins a line at its end. The place in the line is taken by the first poll of
    /// [`InLine::reach_head`].
    pub(super) fn join(&self, key: K) -> InLine<K> {
        let mut lines = lock(&self.0);
        let line = lines.entry(key.clone()).or_default();
        line.length += 1;
        InLine { lines: self.0.clone(), key, head: line.head.clone(), is_head: None }
    }
}

/// A place in a line, until it is dropped.
pub(super) struct InLine<K: Eq + Hash> {
    lines: Arc<Mutex<HashMap<K, Line>>>,
    key: K,
    head: Arc<FairMutex<()>>,
    is_head: Option<OwnedMutexGuard<()>>,
}

impl<K: Eq + Hash> InLine<K> {
    /// Waits until all that came before have left. Returns at once if they have.
    pub(super) async fn reach_head(&mut self) {
        if self.is_head.is_none() {
            self.is_head = Some(self.head.clone().lock_owned().await);
        }
    }
}

impl<K: Eq + Hash> Drop for InLine<K> {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get_mut(&self.key) {
            line.length -= 1;
            if line.length == 0 {
                lines.remove(&self.key);
            }
        }
    }
}
