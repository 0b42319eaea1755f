//! [`Failover`]: windows in this process for when the store can't answer, and what the store has
//! to be told afterwards.

mod journal;
#[cfg(test)]
mod tests;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::journal::{Journal, SharedJournal, Task, TaskKind};
pub(super) use self::trouble::Trouble;
use super::{BanStore, Check, DecidedBy, MemoryStore, Partition, Store, StoreFuture, Verdict};
use crate::backoff::Backoff;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::penalty::REASON;
use crate::report;

/// How many tasks are under way at once when the store is told what it has missed.
const TASKS_AT_ONCE: usize = 128;
/// How long until the store is asked again after it has refused a task.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A store that goes on deciding while another one, which it stands in front of, does not answer.
///
/// Of three rules follows that with one process nobody gets more than the quota:
///
/// - Whatever this process admits is recorded in windows of its own, so that they know what was
///   admitted before an outage.
/// - What they admit is noted, and the store told of it under the requests' own identities. Until
///   then, those windows are decided on here even if the store answers again.
/// - While an outage lasts and for one window afterwards, an admission by the store is held
///   against the windows here. If those hold more than the store, which happens when it has lost
///   its memory or when requests were under way at the time, it is told what it lacks, and the
///   admission is taken back if it was one too many.
pub(super) struct Failover<S>(Arc<Inner<S>>);

impl<S> Clone for Failover<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<S> {
    store: S,
    windows: MemoryStore,
    journal: SharedJournal,
    trouble: Trouble,
}

impl<S: Store> Failover<S> {
    /// Puts windows, and as many unwritten admissions as there may be of them, in front of a store.
    pub(super) fn new(store: S, windows: MemoryStore, trouble: Trouble) -> Self {
        let journal = SharedJournal::new(windows.capacity());
        Self(Arc::new(Inner { store, windows, journal, trouble }))
    }

    fn settle(&self, check: &Arc<Check>, answer: Result<Verdict, StoreError>) -> Answer {
        match answer {
            Ok(verdict) if verdict.admitted => self.admitted(check, verdict),
            Ok(verdict) => {
                self.remember_bans(check, &verdict);
                Ok(verdict)
            }
            Err(error) if error.is_impossible() => Err(error),
            Err(error) => self.without_the_store(check, error),
        }
    }

    /// Records what the store has admitted, and holds it against what is known here if there has
    /// been trouble.
    fn admitted(&self, check: &Arc<Check>, verdict: Verdict) -> Answer {
        let FailurePolicy::Local { .. } = check.on_failure else { return Ok(verdict) };
        let inner = &self.0;
        // At the capacity it is not known here, and a new key will have to be refused in an outage.
        let _ = now(inner.windows.restore(check, Duration::ZERO));
        if !inner.trouble.matters_to(check) {
            self.forget_bans(check);
            return Ok(verdict);
        }
        let weightless = Check { cost: 0, ..Check::clone(check) };
        let held = now(inner.windows.peek(&Arc::new(weightless)))?;
        let mut states = held.states.iter().zip(&verdict.states);
        // Above the limit nothing remains here, however much is above it.
        if held.admitted {
            if states.any(|(here, there)| here.remaining < there.remaining) {
                self.tell_what_it_lacks(check);
            }
            return Ok(verdict);
        }
        let _ = now(inner.windows.cancel(check));
        // Meanwhile there may be room, and whoever takes it must be known to have it.
        let again = now(inner.windows.admit(check));
        self.tell_what_it_lacks(check);
        match again {
            Ok(again) if again.admitted => Ok(verdict),
            again => {
                self.note(check, TaskKind::Cancel, Duration::ZERO)?;
                again.map(|denial| Verdict { decided_by: DecidedBy::LocalWindow, ..denial })
            }
        }
    }

    /// Bans here who is banned there, for when the store does not answer.
    fn remember_bans(&self, check: &Arc<Check>, verdict: &Verdict) {
        if let FailurePolicy::Local { .. } = check.on_failure {
            for ban in verdict.bans.iter().filter(|ban| ban.wait_us > 0) {
                if let Some(partition) = check.partitions.get(ban.partition) {
                    let length = Duration::from_micros(ban.wait_us);
                    let _ = now(self.0.windows.impose(partition, length, REASON));
                }
            }
        }
    }

    /// Lifts here what was lifted there, now that the store has let a request pass.
    fn forget_bans(&self, check: &Arc<Check>) {
        let windows = &self.0.windows;
        let punishable = |it: &&Partition| it.policy.penalty_for_strikes().is_some();
        for partition in check.partitions.iter().filter(punishable) {
            if let Ok(Some(_)) = now(windows.ban(partition)) {
                let _ = now(windows.lift(partition));
            }
        }
    }

    /// Has the store told of all that is known here about the windows of a request.
    fn tell_what_it_lacks(&self, check: &Arc<Check>) {
        // Locked before they are looked at: what is taken back after that is noted after that.
        let mut journal = self.0.journal.lock();
        for partition in &check.partitions {
            for (id, cost, age) in self.0.windows.admissions(partition) {
                let mut admission = Check::new([partition.clone()]);
                (admission.id, admission.cost) = (id, cost);
                // If there is no room, the windows here still know.
                let _ = self.note_in(&mut journal, &Arc::new(admission), TaskKind::Restore, age);
            }
        }
    }

    fn without_the_store(&self, check: &Arc<Check>, error: StoreError) -> Answer {
        self.0.trouble.mark();
        let verdict = self.decide_here(check, &error);
        if error.may_have_counted() && !matches!(&verdict, Ok(verdict) if verdict.admitted) {
            // An open policy lets the request pass: then it is counted rightly.
            if check.on_failure != FailurePolicy::Open {
                let _ = self.note(check, TaskKind::Cancel, Duration::ZERO);
            }
        }
        // Again, for a request that did not see the note in time.
        self.0.trouble.mark();
        verdict
    }

    fn decide_here(&self, check: &Arc<Check>, error: &StoreError) -> Answer {
        let FailurePolicy::Local { instances } = check.on_failure else {
            return Err(error.clone());
        };
        let share = check.shared_among(instances);
        let mut verdict = now(self.0.windows.admit(&share))?;
        if verdict.admitted && check.cost > 0 {
            self.note(check, TaskKind::Restore, Duration::ZERO).inspect_err(|_| {
                let _ = now(self.0.windows.cancel(check));
            })?;
        }
        // Whoever asked gets an answer, and will not tell of the error.
        report::store_error(error);
        verdict.decided_by = DecidedBy::LocalWindow;
        Ok(verdict)
    }

    /// Has the store told about a request, as soon as it can be.
    fn note(&self, check: &Arc<Check>, kind: TaskKind, age: Duration) -> Result<(), StoreError> {
        self.note_in(&mut self.0.journal.lock(), check, kind, age)
    }

    fn note_in(
        &self,
        journal: &mut Journal,
        check: &Arc<Check>,
        kind: TaskKind,
        age: Duration,
    ) -> Result<(), StoreError> {
        let at = Instant::now();
        if !journal.has_room(at) {
            return Err(StoreError::Full { capacity: self.0.windows.capacity() });
        }
        journal.note(check.clone(), kind, at.checked_sub(age).unwrap_or(at));
        if let Ok(runtime) = Handle::try_current()
            && let Some(worker) = journal.begin()
        {
            runtime.spawn(self.clone().work_off(worker));
        }
        Ok(())
    }

    /// Tells the store what it has missed, until nothing is left.
    async fn work_off(self, _worker: Arc<()>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let tasks = {
                let mut journal = self.0.journal.lock();
                let tasks = journal.next(TASKS_AT_ONCE, Instant::now());
                if tasks.is_empty() {
                    return journal.end();
                }
                tasks
            };
            if self.carry_out(tasks).await {
                backoff.reset();
            } else {
                backoff.pause().await;
            }
        }
    }

    /// Carries tasks out, and says whether all of them are done.
    async fn carry_out(&self, tasks: Vec<Task>) -> bool {
        let mut under_way = JoinSet::new();
        for task in tasks {
            let store = self.clone();
            under_way.spawn(async move { (store.0.carry_out(&task).await, task) });
        }
        let (mut written, mut all_done) = (0, true);
        while let Some(result) = under_way.join_next().await {
            let Ok((outcome, task)) = result else { continue };
            match outcome {
                Ok(()) => written += 1,
                Err(error) if error.concerns_one_window() => report::write_back_lost(&error),
                Err(_) => {
                    all_done = false;
                    continue;
                }
            }
            self.0.journal.lock().done(&task);
        }
        report::written_back(written);
        all_done
    }

    /// Tells whether the windows here know more than the store about those of a request.
    fn is_behind(&self, check: &Arc<Check>) -> bool {
        matches!(check.on_failure, FailurePolicy::Local { .. })
            && self.0.journal.concerns(&check.partitions)
    }
}

type Answer = Result<Verdict, StoreError>;

/// Returns the answer of the in-process store, which never has to be waited for.
fn now<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    answer.into_ready().unwrap_or_else(|_| {
        Err(StoreError::Protocol { message: "expected an answer at once".to_owned() })
    })
}

impl<S: Store> Inner<S> {
    async fn carry_out(&self, task: &Task) -> Result<(), StoreError> {
        match task.kind {
            TaskKind::Restore => self.store.restore(&task.check, task.age(Instant::now())).await,
            TaskKind::Cancel => self.store.cancel(&task.check).await.map(|_| ()),
        }
    }
}

impl<S: Store> Store for Failover<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        if self.is_behind(check) {
            return StoreFuture::ready(self.without_the_store(check, StoreError::Unavailable));
        }
        match self.0.store.admit(check).into_ready() {
            Ok(answer) => StoreFuture::ready(self.settle(check, answer)),
            Err(answer) => {
                let (store, check) = (self.clone(), check.clone());
                StoreFuture::later(async move { store.settle(&check, answer.await) })
            }
        }
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        let (store, check) = (self.clone(), check.clone());
        let behind = self.is_behind(&check);
        StoreFuture::later(async move {
            let answer = if behind {
                Err(StoreError::Unavailable)
            } else {
                store.0.store.peek(&check).await
            };
            match (answer, check.on_failure) {
                (Err(error), FailurePolicy::Local { instances }) if !error.is_impossible() => {
                    let share = check.shared_among(instances);
                    let mut verdict = now(store.0.windows.peek(&share))?;
                    verdict.decided_by = DecidedBy::LocalWindow;
                    Ok(verdict)
                }
                (answer, _) => answer,
            }
        })
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let was_here = now(self.0.windows.cancel(check));
        // The store is to be told of the request already: now it is to be told otherwise.
        if self.0.journal.kind_of(check.id).is_some() {
            let noted = self.note(check, TaskKind::Cancel, Duration::ZERO);
            return StoreFuture::ready(noted.and(was_here));
        }
        let (store, check) = (self.clone(), check.clone());
        let answer = self.0.store.cancel(&check);
        StoreFuture::later(async move {
            match answer.await {
                Err(error) => {
                    store.note(&check, TaskKind::Cancel, Duration::ZERO)?;
                    match check.on_failure {
                        FailurePolicy::Local { .. } => was_here,
                        _ => Err(error),
                    }
                }
                answer => answer,
            }
        })
    }

    fn restore(&self, check: &Arc<Check>, age: Duration) -> StoreFuture<()> {
        let _ = now(self.0.windows.restore(check, age));
        self.0.store.restore(check, age)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let _ = now(self.0.windows.reset(partitions));
        self.0.journal.lock().forget(partitions);
        self.0.store.reset(partitions)
    }
}
