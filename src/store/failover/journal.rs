//! [`Journal`]: the changes to be written back to the store, log by log.

mod backlog;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;

use self::backlog::Backlog;
pub(super) use self::backlog::{Change, ChangeKind, Claim, LogWriter, Resync};
use crate::error::StoreError;
use crate::store::fill::Fill;
use crate::store::{Check, LogId};
use crate::telemetry::Filled;

const MAX_RESYNCED: usize = 65_536;

/// A journal behind a lock. It is nearly always empty, which can be read without the lock.
#[derive(Debug)]
pub(super) struct SharedJournal {
    journal: Mutex<Journal>,
    /// The number of backlogs, updated before the lock is released.
    count: AtomicUsize,
    fill: Fill,
}

impl SharedJournal {
    pub(super) fn new(capacity: usize) -> Self {
        let fill = Fill::new(Filled::Journal, capacity);
        Self { journal: Mutex::new(Journal::new(capacity)), count: AtomicUsize::new(0), fill }
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Journal) -> T) -> T {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut journal);
        self.count.store(journal.backlogs.len(), Ordering::Release);
        let changes = journal.changes;
        drop(journal);
        self.fill.report(changes);
        result
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns whether anything is to be written back, or is being written back, for one of some
    /// logs.
    ///
    /// Takes the lock in any case, to see a change that is being added.
    pub(super) fn has_backlog(&self, logs: &[LogId]) -> bool {
        self.with(|journal| logs.iter().any(|log| journal.backlogs.contains_key(log)))
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    backlogs: HashMap<LogId, Backlog, RandomState>,
    /// The logs by the numbers of their backlogs, in the order of the write-back.
    order: BTreeMap<u64, LogId>,
    changes: usize,
    capacity: usize,
    next_number: u64,
    cleared_at: Option<Instant>,
    /// A number of reconnections, and the logs for which a resync was requested since then.
    resynced: (u64, HashSet<LogId, RandomState>),
    /// The number of new connections, and when it was seen to change.
    connected: (u64, Option<Instant>),
    /// The token of the background task. It is dangling when the task is gone.
    task: Weak<()>,
}

impl Journal {
    fn new(capacity: usize) -> Self {
        Self {
            backlogs: HashMap::default(),
            order: BTreeMap::new(),
            changes: 0,
            capacity,
            next_number: 0,
            cleared_at: None,
            resynced: (0, HashSet::default()),
            connected: (0, None),
            task: Weak::new(),
        }
    }

    pub(super) fn claim_task(&mut self) -> Option<Arc<()>> {
        if self.task.strong_count() > 0 {
            return None;
        }
        let token = Arc::new(());
        self.task = Arc::downgrade(&token);
        Some(token)
    }

    pub(super) fn release_task(&mut self) {
        self.task = Weak::new();
    }

    pub(super) fn change_count(&self, logs: &[LogId]) -> usize {
        logs.iter().filter_map(|log| self.backlogs.get(log)).map(|it| it.changes.len()).sum()
    }

    pub(super) fn places(&self, logs: &[LogId]) -> usize {
        logs.iter().filter_map(|log| self.backlogs.get(log)).map(|it| it.places).sum()
    }

    /// Returns whether checks must not wait for the write-back of one of these logs, because it has
    /// failed.
    pub(super) fn is_failing(&mut self, logs: &[LogId], now: Instant, connections: u64) -> bool {
        if self.connected.0 != connections {
            self.connected = (connections, Some(now));
        }
        let mut backlogs = logs.iter().filter_map(|log| self.backlogs.get(log));
        backlogs.any(|backlog| backlog.is_failing(now, self.connected.1))
    }

    pub(super) fn last_number(&self) -> u64 {
        self.next_number
    }

    pub(super) fn has_changes_until(&self, log: &LogId, number: u64) -> bool {
        self.backlogs.get(log).is_some_and(|backlog| backlog.has_changes_until(number))
    }

    pub(super) fn needs_resync(&self, log: &LogId) -> bool {
        self.backlogs.get(log).is_some_and(Backlog::needs_resync)
    }

    /// Adds a change to each log of a request. It replaces an earlier change of the same request.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no room. A replacement needs none.
    pub(super) fn add(
        &mut self,
        check: &Check,
        kind: ChangeKind,
        at: Instant,
    ) -> Result<(), StoreError> {
        let is_new = |log: &&LogId| {
            self.backlogs.get(*log).is_none_or(|it| !it.numbers.contains_key(&check.id))
        };
        let more = check.logs.iter().filter(is_new).count();
        if more > 0 && !self.has_room(more, at) {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        for (log, cost) in check.costs() {
            if cost == 0 && kind.restores() {
                // A later settlement must not find an admission of this log.
                continue;
            }
            self.next_number += 1;
            let number = self.next_number;
            let change = Change { id: check.id, kind, cost, at, number };
            let is_new = self.backlog(log).add(change);
            self.changes += usize::from(is_new);
        }
        Ok(())
    }

    /// Requests a resync: the local log is written back as a whole, because the store may lack any
    /// part of it.
    ///
    /// Without `always` a log is resynced once after each reconnection: a log in constant use may
    /// look incomplete only because two replies overtook one another.
    pub(super) fn request_resync(&mut self, log: &LogId, reconnections: u64, always: bool) {
        if self.resynced.0 != reconnections || self.resynced.1.len() >= MAX_RESYNCED {
            self.resynced = (reconnections, HashSet::default());
        }
        if self.resynced.1.insert(log.clone()) || always {
            self.backlog(log).request_resync();
        }
    }

    fn backlog(&mut self, log: &LogId) -> &mut Backlog {
        match self.backlogs.entry(log.clone()) {
            Entry::Occupied(occupied) => {
                let backlog = occupied.into_mut();
                backlog.keep_longest_policy(log);
                backlog
            }
            Entry::Vacant(vacant) => {
                self.next_number += 1;
                self.order.insert(self.next_number, log.clone());
                vacant.insert(Backlog::new(log.clone(), self.next_number))
            }
        }
    }

    /// Claims the write-back of a log, with changes that take up to `max_places`.
    pub(super) fn claim(&mut self, log: &LogId, max_places: usize, now: Instant) -> Claim {
        let Some(backlog) = self.backlogs.get_mut(log) else { return Claim::Nothing };
        backlog.keep_longest_policy(log);
        self.changes -= backlog.drop_expired(now);
        let claim = backlog.claim(max_places);
        self.drop_if_empty(log);
        claim
    }

    /// Ends the work of a writer. If it has succeeded, drops its changes, except those that were
    /// replaced meanwhile.
    ///
    /// A resync goes on after the timestamp `resynced_until_us`. With `None` it is complete.
    pub(super) fn finish(
        &mut self,
        writer: &LogWriter,
        result: &Result<(), StoreError>,
        resynced_until_us: Option<u64>,
    ) {
        if let Some(backlog) = self.backlogs.get_mut(&writer.log) {
            self.changes -= backlog.finish(writer, result.is_ok(), resynced_until_us);
            self.drop_if_empty(&writer.log);
        }
        writer.result.send_replace(Some(result.clone()));
    }

    pub(super) fn forget(&mut self, logs: &[LogId]) {
        for log in logs {
            if let Some(backlog) = self.backlogs.get_mut(log) {
                self.changes -= backlog.clear();
                self.drop_if_empty(log);
            }
        }
    }

    /// Returns up to `max` logs to be written back. Those that were returned last come last, so
    /// that a log that can't be written delays no other.
    pub(super) fn next_logs(&mut self, max: usize) -> Vec<LogId> {
        let count = self.order.len().min(max);
        let next_log = |_| {
            let (_, log) = self.order.pop_first()?;
            let backlog = self.backlogs.get_mut(&log)?;
            self.next_number += 1;
            backlog.number = self.next_number;
            self.order.insert(backlog.number, log);
            Some(backlog.log.clone())
        };
        (0..count).filter_map(next_log).collect()
    }

    fn has_room(&mut self, more: usize, now: Instant) -> bool {
        if self.changes + more <= self.capacity {
            return true;
        }
        let is_recent = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if !self.cleared_at.is_some_and(is_recent) {
            self.cleared_at = Some(now);
            let Self { backlogs, order, changes, .. } = self;
            backlogs.retain(|_, backlog| {
                *changes -= backlog.drop_expired(now);
                let is_kept = !backlog.is_empty();
                if !is_kept {
                    order.remove(&backlog.number);
                }
                is_kept
            });
        }
        self.changes + more <= self.capacity
    }

    fn drop_if_empty(&mut self, log: &LogId) {
        if self.backlogs.get(log).is_some_and(Backlog::is_empty)
            && let Some(backlog) = self.backlogs.remove(log)
        {
            self.order.remove(&backlog.number);
        }
    }
}
