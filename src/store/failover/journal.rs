//! [`SharedJournal`]: what the store has yet to be told.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;
use uuid::Uuid;

use crate::store::{Check, Partition};

/// What is still to be done in the store for one request.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) check: Arc<Check>,
    pub(super) kind: TaskKind,
    /// When the request was admitted.
    at: Instant,
    /// Tells a task from the one that took its place while it was under way.
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// The request was admitted without the store, which is to count it.
    Restore,
    /// The request was not admitted after all, and the store may have counted it.
    Cancel,
}

impl Task {
    /// Returns how long ago the request was admitted.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    /// Tells whether the request has left all its windows, so that nothing is left to do.
    fn is_over(&self, now: Instant) -> bool {
        let horizon_us = self.check.partitions.iter().map(|it| it.policy.horizon_us()).max();
        self.age(now) >= Duration::from_micros(horizon_us.unwrap_or(0))
    }
}

/// The journal of a process, which is empty nearly always.
#[derive(Debug)]
pub(super) struct SharedJournal {
    journal: Mutex<Journal>,
    /// The length of the journal, for a look without its lock.
    unwritten: AtomicUsize,
}

impl SharedJournal {
    pub(super) fn new(capacity: usize) -> Self {
        Self { journal: Mutex::new(Journal::new(capacity)), unwritten: AtomicUsize::new(0) }
    }

    /// Locks the journal; its length is known to all when the lock is released.
    pub(super) fn lock(&self) -> Locked<'_> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { journal, unwritten: &self.unwritten }
    }

    /// Tells whether the store has yet to be told something about one of these windows.
    pub(super) fn concerns(&self, partitions: &[Partition]) -> bool {
        self.unwritten.load(Ordering::Acquire) > 0 && self.lock().concerns(partitions)
    }

    /// Returns what is to be done for a request.
    pub(super) fn kind_of(&self, id: Uuid) -> Option<TaskKind> {
        // Locked in any case: it may be about to be noted.
        self.lock().kind_of(id)
    }
}

/// The journal while it is looked at or changed.
pub(super) struct Locked<'a> {
    journal: MutexGuard<'a, Journal>,
    unwritten: &'a AtomicUsize,
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
        self.unwritten.store(self.journal.len(), Ordering::Release);
    }
}

/// The tasks by request, and the windows they concern.
#[derive(Debug)]
pub(super) struct Journal {
    tasks: HashMap<Uuid, Task, RandomState>,
    /// In the order they were noted or last returned, beside some that are done.
    order: VecDeque<Uuid>,
    /// How many tasks concern a window.
    windows: HashMap<Partition, usize, RandomState>,
    capacity: usize,
    next_number: u64,
    cleared_at: Instant,
    /// Held by whoever works the tasks off, and let go if a runtime that ends has dropped them.
    worker: Weak<()>,
}

impl Journal {
    fn new(capacity: usize) -> Self {
        Self {
            tasks: HashMap::default(),
            order: VecDeque::new(),
            windows: HashMap::default(),
            capacity,
            next_number: 0,
            cleared_at: Instant::now(),
            worker: Weak::new(),
        }
    }

    /// Returns what whoever works the tasks off is to hold, unless somebody does already.
    pub(super) fn begin(&mut self) -> Option<Arc<()>> {
        if self.worker.strong_count() > 0 {
            return None;
        }
        let worker = Arc::new(());
        self.worker = Arc::downgrade(&worker);
        Some(worker)
    }

    /// Notes that nobody works the tasks off any longer.
    pub(super) fn end(&mut self) {
        self.worker = Weak::new();
    }

    fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Tells whether the store has yet to be told something about one of these windows.
    fn concerns(&self, partitions: &[Partition]) -> bool {
        partitions.iter().any(|partition| self.windows.contains_key(partition))
    }

    /// Makes room for one more task, and says whether there is.
    pub(super) fn has_room(&mut self, now: Instant) -> bool {
        // Each task that is noted pays for dropping about one that is over.
        for _ in 0..2 {
            match self.order.front().map(|id| self.tasks.get(id)) {
                Some(Some(task)) if !task.is_over(now) => break,
                Some(_) => self.drop_front(),
                None => break,
            }
        }
        let often = now.saturating_duration_since(self.cleared_at) < Duration::from_secs(1);
        if self.len() >= self.capacity && !often {
            self.cleared_at = now;
            let over: Vec<Uuid> = self.over(now);
            over.iter().for_each(|id| self.remove(*id));
            self.order.retain(|id| self.tasks.contains_key(id));
        }
        self.len() < self.capacity
    }

    fn over(&self, now: Instant) -> Vec<Uuid> {
        self.tasks.iter().filter(|(_, task)| task.is_over(now)).map(|(id, _)| *id).collect()
    }

    fn drop_front(&mut self) {
        if let Some(id) = self.order.pop_front() {
            self.remove(id);
        }
    }

    /// Notes what is to be done for a request, in place of what was to be done for it before. A
    /// request that is to be counted in more windows than was known is counted in all of them.
    pub(super) fn note(&mut self, mut check: Arc<Check>, kind: TaskKind, at: Instant) {
        let before = self.tasks.remove(&check.id);
        if let Some(before) = &before {
            self.leave(&before.check.partitions);
            for partition in &before.check.partitions {
                if !check.partitions.contains(partition) {
                    Arc::make_mut(&mut check).partitions.push(partition.clone());
                }
            }
        } else {
            self.order.push_back(check.id);
        }
        self.insert(check, kind, at);
    }

    fn insert(&mut self, check: Arc<Check>, kind: TaskKind, at: Instant) {
        for partition in &check.partitions {
            *self.windows.entry(partition.clone()).or_default() += 1;
        }
        self.next_number += 1;
        let number = self.next_number;
        self.tasks.insert(check.id, Task { check, kind, at, number });
    }

    /// Returns what is to be done for a request.
    fn kind_of(&self, id: Uuid) -> Option<TaskKind> {
        self.tasks.get(&id).map(|task| task.kind)
    }

    /// Forgets what was to be done about some windows.
    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let concerned = |task: &&Task| {
            task.check.partitions.iter().any(|partition| partitions.contains(partition))
        };
        let ids: Vec<Uuid> = self.tasks.values().filter(concerned).map(|it| it.check.id).collect();
        for id in ids {
            let Some(mut task) = self.tasks.remove(&id) else { continue };
            self.leave(&task.check.partitions);
            let check = Arc::make_mut(&mut task.check);
            check.partitions.retain(|partition| !partitions.contains(partition));
            if !task.check.partitions.is_empty() {
                // One that is under way is to be done again, without these windows.
                self.insert(task.check, task.kind, task.at);
            }
        }
    }

    /// Returns up to `most` tasks, which stay noted until they are done. Those that were not
    /// returned lately come first, so that none that can't be done holds up the others.
    pub(super) fn next(&mut self, most: usize, now: Instant) -> Vec<Task> {
        let mut tasks = Vec::new();
        for _ in 0..self.order.len() {
            let Some(id) = self.order.pop_front() else { break };
            match self.tasks.get(&id) {
                Some(task) if task.is_over(now) => self.remove(id),
                Some(task) => {
                    tasks.push(task.clone());
                    self.order.push_back(id);
                }
                None => {}
            }
            if tasks.len() == most {
                break;
            }
        }
        tasks
    }

    /// Notes that a task is done, unless another has taken its place meanwhile.
    pub(super) fn done(&mut self, task: &Task) {
        if self.tasks.get(&task.check.id).is_some_and(|noted| noted.number == task.number) {
            self.remove(task.check.id);
        }
    }

    fn remove(&mut self, id: Uuid) {
        if let Some(task) = self.tasks.remove(&id) {
            self.leave(&task.check.partitions);
        }
    }

    fn leave(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            if let Some(count) = self.windows.get_mut(partition) {
                *count -= 1;
                if *count == 0 {
                    self.windows.remove(partition);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::policy::Policy;
    use crate::quota::Quota;

    fn partition(key: u64) -> Partition {
        let policy = Policy::new("user").quota(Quota::per_hour(5));
        Partition::new(Arc::new(policy), key.to_string())
    }

    fn restore_in(journal: &mut Journal, key: u64) -> Arc<Check> {
        let check = Arc::new(Check::new([partition(key)]));
        journal.note(check.clone(), TaskKind::Restore, Instant::now());
        check
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_left_its_windows_makes_room_in_the_journal() {
        let mut journal = Journal::new(4);
        for key in 0..4 {
            assert!(journal.has_room(Instant::now()));
            restore_in(&mut journal, key);
        }
        assert!(!journal.has_room(Instant::now()));
        tokio::time::advance(Duration::from_secs(3600)).await;
        for key in 4..100 {
            assert!(journal.has_room(Instant::now()), "for number {key}");
            restore_in(&mut journal, key);
            tokio::time::advance(Duration::from_secs(1200)).await;
        }
        assert!(!journal.concerns(&[partition(0)]));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(journal.next(10, Instant::now()).is_empty() && journal.len() == 0);
    }

    #[test]
    fn a_request_is_settled_in_all_windows_that_were_ever_noted_for_it() {
        let mut journal = Journal::new(100);
        let first = restore_in(&mut journal, 0);
        let second = Check { id: first.id, ..Check::new([partition(1)]) };
        journal.note(Arc::new(second), TaskKind::Cancel, Instant::now());
        let [task] = &journal.next(10, Instant::now())[..] else { panic!("one task a request") };
        assert_eq!(task.check.partitions[..], [partition(1), partition(0)]);
        assert!(journal.concerns(&[partition(0)]) && journal.concerns(&[partition(1)]));
    }

    #[test]
    fn what_can_t_be_done_holds_up_nothing_else() {
        let mut journal = Journal::new(100);
        let checks: Vec<Arc<Check>> = (0..10).map(|key| restore_in(&mut journal, key)).collect();
        let mut seen = HashSet::new();
        for _ in 0..5 {
            // None of them is ever done.
            seen.extend(journal.next(2, Instant::now()).iter().map(|task| task.check.id));
        }
        assert_eq!(seen.len(), checks.len());
    }

    #[test]
    fn a_task_that_was_replaced_while_it_was_under_way_is_still_to_be_done() {
        let mut journal = Journal::new(100);
        let check = restore_in(&mut journal, 0);
        let under_way = journal.next(1, Instant::now());
        journal.note(check.clone(), TaskKind::Cancel, Instant::now());
        journal.done(&under_way[0]);
        assert_eq!(journal.kind_of(check.id), Some(TaskKind::Cancel));
        let again = journal.next(1, Instant::now());
        journal.done(&again[0]);
        assert!(!journal.concerns(&check.partitions) && journal.len() == 0);
    }
}
