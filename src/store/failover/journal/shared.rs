//! [`SharedJournal`]: the journal of a process, behind a lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Journal;
use crate::store::LogId;

/// A journal behind a lock. It is nearly always empty, which can be read without the lock.
#[derive(Debug)]
pub(in crate::store::failover) struct SharedJournal {
    journal: Mutex<Journal>,
    /// The number of backlogs, updated when the lock is released.
    count: AtomicUsize,
}

impl SharedJournal {
    pub(in crate::store::failover) fn new(capacity: usize) -> Self {
        Self { journal: Mutex::new(Journal::new(capacity)), count: AtomicUsize::new(0) }
    }

    pub(in crate::store::failover) fn lock(&self) -> JournalGuard<'_> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        JournalGuard { journal, count: &self.count }
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
        let journal = self.lock();
        logs.iter().any(|log| journal.backlogs.contains_key(log))
    }
}

/// The locked journal.
pub(in crate::store::failover) struct JournalGuard<'a> {
    journal: MutexGuard<'a, Journal>,
    count: &'a AtomicUsize,
}

impl Deref for JournalGuard<'_> {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        &self.journal
    }
}

impl DerefMut for JournalGuard<'_> {
    fn deref_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }
}

impl Drop for JournalGuard<'_> {
    fn drop(&mut self) {
        self.count.store(self.journal.backlogs.len(), Ordering::Release);
    }
}
