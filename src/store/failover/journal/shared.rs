//! [`SharedJournal`]: the journal of a process, behind a lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Journal;
use crate::store::LogId;

/// A journal behind a lock. It is nearly always empty, which can be read without the lock.
#[derive(Debug)]
pub(in crate::store::failover) struct SharedJournal {
    journal: Mutex<Journal>,
    /// The number of backlogs, updated before the lock is released.
    count: AtomicUsize,
}

impl SharedJournal {
    pub(in crate::store::failover) fn new(capacity: usize) -> Self {
        Self { journal: Mutex::new(Journal::new(capacity)), count: AtomicUsize::new(0) }
    }

    /// Reads or changes the journal under its lock.
    pub(in crate::store::failover) fn with<T>(&self, f: impl FnOnce(&mut Journal) -> T) -> T {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut journal);
        self.count.store(journal.backlogs.len(), Ordering::Release);
        result
    }

    /// Returns whether there is nothing to write back.
    pub(in crate::store::failover) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns whether anything is to be written back, or is being written back, for one of some
    /// logs.
    ///
    /// Takes the lock in any case, to see a change that is being added.
    pub(in crate::store::failover) fn has_backlog(&self, logs: &[LogId]) -> bool {
        self.with(|journal| logs.iter().any(|log| journal.backlogs.contains_key(log)))
    }
}
