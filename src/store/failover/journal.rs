//! [`SharedJournal`]: what the store has yet to be told, log by log.

mod backlog;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;

use self::backlog::Backlog;
pub(super) use self::backlog::{Change, ChangeKind, Lead, Turn};
use crate::error::StoreError;
use crate::store::{Check, LogId};

/// Of how many logs it is remembered that they were surveyed since the last reconnection.
const MOST_SURVEYED: usize = 65_536;

/// The journal of a process, which is empty nearly always.
#[derive(Debug)]
pub(super) struct SharedJournal {
    journal: Mutex<Journal>,
    /// How many logs the journal is about, for a look without its lock.
    logs: AtomicUsize,
}

impl SharedJournal {
    pub(super) fn new(capacity: usize) -> Self {
        Self { journal: Mutex::new(Journal::new(capacity)), logs: AtomicUsize::new(0) }
    }

    /// Locks the journal. Whether it is empty is known to all when the lock is released.
    pub(super) fn lock(&self) -> Locked<'_> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { journal, logs: &self.logs }
    }

    /// Tells whether the journal is about no log.
    pub(super) fn is_empty(&self) -> bool {
        self.logs.load(Ordering::Acquire) == 0
    }

    /// Tells whether anything is to be told about these logs.
    pub(super) fn concerns(&self, logs: &[LogId]) -> bool {
        // Locked in any case: something may be about to be noted.
        let journal = self.lock();
        logs.iter().any(|log| journal.backlogs.contains_key(log))
    }
}

/// The journal while it is looked at or changed.
pub(super) struct Locked<'a> {
    journal: MutexGuard<'a, Journal>,
    logs: &'a AtomicUsize,
}

impl Deref for Locked<'_> {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        &self.journal
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.logs.store(self.journal.backlogs.len(), Ordering::Release);
    }
}

/// What is to be told about each log.
#[derive(Debug)]
pub(super) struct Journal {
    backlogs: HashMap<LogId, Backlog, RandomState>,
    /// The logs in the order in which the store is told of them, and the numbers of their backlogs,
    /// beside some that are done.
    order: VecDeque<(LogId, u64)>,
    /// How many changes there are, of all logs.
    changes: usize,
    capacity: usize,
    next_number: u64,
    cleared_at: Option<Instant>,
    /// The logs that were surveyed since this many reconnections.
    surveyed: (u64, HashSet<LogId, RandomState>),
    /// How often the connection was made again, and when that was seen last.
    reconnected: (u64, Option<Instant>),
    /// Held by the task that tells the store, and let go if a runtime that ends has dropped that.
    worker: Weak<()>,
}

impl Journal {
    fn new(capacity: usize) -> Self {
        Self {
            backlogs: HashMap::default(),
            order: VecDeque::new(),
            changes: 0,
            capacity,
            next_number: 0,
            cleared_at: None,
            surveyed: (0, HashSet::default()),
            reconnected: (0, None),
            worker: Weak::new(),
        }
    }

    /// Returns what the task that tells the store has to hold, unless there is one already.
    pub(super) fn begin(&mut self) -> Option<Arc<()>> {
        if self.worker.strong_count() > 0 {
            return None;
        }
        let worker = Arc::new(());
        self.worker = Arc::downgrade(&worker);
        Some(worker)
    }

    /// Notes that no task tells the store any longer.
    pub(super) fn end(&mut self) {
        self.worker = Weak::new();
    }

    /// Returns how many changes there are of some logs.
    pub(super) fn changes(&self, logs: &[LogId]) -> usize {
        logs.iter().filter_map(|log| self.backlogs.get(log)).map(Backlog::changes).sum()
    }

    /// Returns how many places the changes of some logs take.
    pub(super) fn places(&self, logs: &[LogId]) -> usize {
        logs.iter().filter_map(|log| self.backlogs.get(log)).map(Backlog::places).sum()
    }

    /// Tells whether no check is to wait until the store is told of one of these logs.
    pub(super) fn is_stalled(&mut self, logs: &[LogId], now: Instant, connections: u64) -> bool {
        if self.reconnected.0 != connections {
            self.reconnected = (connections, Some(now));
        }
        let mut backlogs = logs.iter().filter_map(|log| self.backlogs.get(log));
        backlogs.any(|backlog| backlog.is_stalled(now, self.reconnected.1))
    }

    /// Returns the number of the last change that was noted.
    pub(super) fn last_number(&self) -> u64 {
        self.next_number
    }

    /// Tells whether the store has yet to be told of a change up to this number.
    pub(super) fn has_until(&self, log: &LogId, number: u64) -> bool {
        self.backlogs.get(log).is_some_and(|backlog| backlog.has_until(number))
    }

    /// Tells whether the store is to be told all that is known here of a log.
    pub(super) fn is_surveyed(&self, log: &LogId) -> bool {
        self.backlogs.get(log).is_some_and(Backlog::is_surveyed)
    }

    /// Notes what has become of a request, in place of what was noted before, in each of its logs.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no room. What only replaces something needs none.
    pub(super) fn note(
        &mut self,
        check: &Check,
        kind: ChangeKind,
        at: Instant,
    ) -> Result<(), StoreError> {
        let is_new = |log: &&LogId| self.backlogs.get(*log).is_none_or(|it| !it.has(check.id));
        let more = check.logs.iter().filter(is_new).count();
        if more > 0 && !self.has_room(more, at) {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        for log in &check.logs {
            self.next_number += 1;
            let number = self.next_number;
            let change = Change { id: check.id, kind, cost: check.cost, at, number };
            let is_new = self.backlog(log).note(change);
            self.changes += usize::from(is_new);
        }
        Ok(())
    }

    /// Notes that the store may lack anything of a log, so that all that is known here is to be
    /// told.
    ///
    /// Without `always` that is done once after each reconnection: a log in constant use may look
    /// incomplete only because two replies overtook one another.
    pub(super) fn survey(&mut self, log: &LogId, reconnections: u64, always: bool) {
        if self.surveyed.0 != reconnections || self.surveyed.1.len() >= MOST_SURVEYED {
            self.surveyed = (reconnections, HashSet::default());
        }
        if self.surveyed.1.insert(log.clone()) || always {
            self.backlog(log).begin_survey();
        }
    }

    fn backlog(&mut self, log: &LogId) -> &mut Backlog {
        match self.backlogs.entry(log.clone()) {
            Entry::Occupied(known) => {
                let backlog = known.into_mut();
                backlog.lengthen(log);
                backlog
            }
            Entry::Vacant(vacant) => {
                self.next_number += 1;
                self.order.push_back((log.clone(), self.next_number));
                vacant.insert(Backlog::new(log.clone(), self.next_number))
            }
        }
    }

    /// Drops what is done from the order, if it is most of it: a log may be done and noted again any
    /// number of times before its turn comes.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.backlogs.len() + 64 {
            let backlogs = &self.backlogs;
            self.order.retain(|(log, number)| is_current(backlogs, log, *number));
        }
    }

    /// Says whose turn it is to tell the store about a log, and of what: of changes that take
    /// up to `most` places.
    pub(super) fn turn(&mut self, log: &LogId, most: usize, now: Instant) -> Turn {
        let Some(backlog) = self.backlogs.get_mut(log) else { return Turn::Nothing };
        backlog.lengthen(log);
        self.changes -= backlog.drop_over(now);
        let turn = backlog.turn(most);
        self.drop_if_empty(log);
        turn
    }

    /// Notes how a turn has ended: what was told is done, unless it was replaced meanwhile.
    ///
    /// A survey goes on from `surveyed_until_us`, or has told everything.
    pub(super) fn finish(
        &mut self,
        lead: &Lead,
        outcome: &Result<(), StoreError>,
        surveyed_until_us: Option<u64>,
    ) {
        if let Some(backlog) = self.backlogs.get_mut(&lead.log) {
            self.changes -= backlog.finish(lead, outcome.is_ok(), surveyed_until_us);
            self.drop_if_empty(&lead.log);
        }
        lead.tell(outcome);
    }

    /// Forgets what was to be told about some logs.
    pub(super) fn forget(&mut self, logs: &[LogId]) {
        for log in logs {
            if let Some(backlog) = self.backlogs.get_mut(log) {
                self.changes -= backlog.forget();
                self.drop_if_empty(log);
            }
        }
    }

    /// Returns up to `most` logs that the store is to be told about. Those that were not returned
    /// lately come first, so that one that can't be told holds up no other.
    pub(super) fn next(&mut self, most: usize) -> Vec<LogId> {
        let mut logs = Vec::new();
        for _ in 0..self.order.len() {
            if logs.len() == most {
                break;
            }
            let Some((log, number)) = self.order.pop_front() else { break };
            if let Some(backlog) = self.backlogs.get(&log).filter(|it| it.number() == number) {
                logs.push(backlog.log().clone());
                self.order.push_back((log, number));
            }
        }
        logs
    }

    /// Makes room for so many more changes, and says whether there is.
    fn has_room(&mut self, more: usize, now: Instant) -> bool {
        if self.changes + more <= self.capacity {
            return true;
        }
        let lately = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if !self.cleared_at.is_some_and(lately) {
            self.cleared_at = Some(now);
            for backlog in self.backlogs.values_mut() {
                self.changes -= backlog.drop_over(now);
            }
            self.backlogs.retain(|_, backlog| !backlog.is_empty());
            self.tidy();
        }
        self.changes + more <= self.capacity
    }

    fn drop_if_empty(&mut self, log: &LogId) {
        if self.backlogs.get(log).is_some_and(Backlog::is_empty) {
            // Its place in the order is passed over when its turn comes.
            self.backlogs.remove(log);
            self.tidy();
        }
    }
}

/// Tells whether a place in the order is that of a backlog.
fn is_current(backlogs: &HashMap<LogId, Backlog, RandomState>, log: &LogId, number: u64) -> bool {
    backlogs.get(log).is_some_and(|backlog| backlog.number() == number)
}
