//! [`Failover`]: windows in this process for when the store can't answer, and what the store has
//! to be told afterwards.

mod journal;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use self::journal::{Journal, Task, TaskKind};
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
    journal: Mutex<Journal>,
    /// The length of the journal, for a look without its lock.
    unwritten: AtomicUsize,
    trouble: Trouble,
}

impl<S: Store> Failover<S> {
    /// Puts these windows, and as many unwritten admissions as there may be of them, in front of a
    /// store.
    pub(super) fn new(store: S, windows: MemoryStore, trouble: Trouble) -> Self {
        let capacity = windows.capacity();
        Self(Arc::new(Inner {
            store,
            windows,
            journal: Mutex::new(Journal::new(capacity)),
            unwritten: AtomicUsize::new(0),
            trouble,
        }))
    }

    fn settle(&self, check: &Check, answer: Result<Verdict, StoreError>) -> Answer {
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
    fn admitted(&self, check: &Check, verdict: Verdict) -> Answer {
        let FailurePolicy::Local { .. } = check.on_failure else { return Ok(verdict) };
        let inner = &self.0;
        // At the capacity it is not known here, and a new key will have to be refused in an outage.
        let _ = now(inner.windows.restore(check, Duration::ZERO));
        if !inner.trouble.matters_to(check) {
            self.forget_bans(check);
            return Ok(verdict);
        }
        let mut weightless = check.clone();
        weightless.cost = 0;
        let held = now(inner.windows.peek(&weightless))?;
        let mut states = held.states.iter().zip(&verdict.states);
        // Above the limit nothing remains here, however much is above it.
        if held.admitted && states.all(|(here, there)| here.remaining >= there.remaining) {
            return Ok(verdict);
        }
        if !held.admitted {
            let _ = now(inner.windows.cancel(check));
        }
        self.tell_what_it_lacks(check);
        if held.admitted {
            return Ok(verdict);
        }
        self.note(check, TaskKind::Cancel, Duration::ZERO)?;
        let mut denial = now(inner.windows.peek(check))?;
        denial.decided_by = DecidedBy::LocalWindow;
        Ok(denial)
    }

    /// Bans here who is banned there, for when the store does not answer.
    fn remember_bans(&self, check: &Check, verdict: &Verdict) {
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
    fn forget_bans(&self, check: &Check) {
        let windows = &self.0.windows;
        let punishable = |it: &&Partition| it.policy.penalty_for_strikes().is_some();
        for partition in check.partitions.iter().filter(punishable) {
            if let Ok(Some(_)) = now(windows.ban(partition)) {
                let _ = now(windows.lift(partition));
            }
        }
    }

    /// Has the store told of all that is known here about the windows of a request.
    fn tell_what_it_lacks(&self, check: &Check) {
        for partition in &check.partitions {
            for (id, cost, age) in self.0.windows.admissions(partition) {
                let mut admission = Check::new([partition.clone()]);
                (admission.id, admission.cost) = (id, cost);
                // If there is no room, the windows here still know.
                let _ = self.note(&admission, TaskKind::Restore, age);
            }
        }
    }

    fn without_the_store(&self, check: &Check, error: StoreError) -> Answer {
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

    fn decide_here(&self, check: &Check, error: &StoreError) -> Answer {
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
    fn note(&self, check: &Check, kind: TaskKind, age: Duration) -> Result<(), StoreError> {
        let at = Instant::now();
        let mut journal = self.journal();
        if !journal.has_room(at) {
            return Err(StoreError::Full { capacity: self.0.windows.capacity() });
        }
        journal.note(check.clone(), kind, at.checked_sub(age).unwrap_or(at));
        if !journal.is_worked_off
            && let Ok(runtime) = Handle::try_current()
        {
            journal.is_worked_off = true;
            runtime.spawn(self.clone().work_off());
        }
        Ok(())
    }

    /// Tells the store what it has missed, until nothing is left.
    async fn work_off(self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let tasks = {
                let mut journal = self.journal();
                let tasks = journal.next(TASKS_AT_ONCE, Instant::now());
                journal.is_worked_off = !tasks.is_empty();
                tasks
            };
            if tasks.is_empty() {
                return;
            }
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
            self.journal().done(&task);
        }
        report::written_back(written);
        all_done
    }

    /// Locks the journal; its length is known to all when the lock is released.
    fn journal(&self) -> Noting<'_> {
        let journal = self.0.journal.lock().unwrap_or_else(PoisonError::into_inner);
        Noting { journal, unwritten: &self.0.unwritten }
    }

    /// Tells whether the windows here know more than the store about those of a request.
    fn is_behind(&self, check: &Check) -> bool {
        self.0.unwritten.load(Ordering::Acquire) > 0
            && matches!(check.on_failure, FailurePolicy::Local { .. })
            && self.journal().concerns(&check.partitions)
    }

    fn kind_of(&self, id: Uuid) -> Option<TaskKind> {
        if self.0.unwritten.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.journal().kind_of(id)
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

/// The journal while it is changed.
struct Noting<'a> {
    journal: MutexGuard<'a, Journal>,
    unwritten: &'a AtomicUsize,
}

impl std::ops::Deref for Noting<'_> {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        &self.journal
    }
}

impl std::ops::DerefMut for Noting<'_> {
    fn deref_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.unwritten.store(self.journal.len(), Ordering::Release);
    }
}

impl<S: Store> Store for Failover<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
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

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
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

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        let was_here = now(self.0.windows.cancel(check));
        // The store is to be told of the request already: now it is to be told otherwise.
        if self.kind_of(check.id).is_some() {
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

    fn restore(&self, check: &Check, age: Duration) -> StoreFuture<()> {
        let _ = now(self.0.windows.restore(check, age));
        self.0.store.restore(check, age)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let _ = now(self.0.windows.reset(partitions));
        self.journal().forget(partitions);
        self.0.store.reset(partitions)
    }
}

/// When the store was last seen to fail. Clones are one.
#[derive(Clone, Debug)]
pub(super) struct Trouble(Arc<TroubleClock>);

#[derive(Debug)]
struct TroubleClock {
    epoch: Instant,
    /// Microseconds since the epoch, plus 1; 0 if never.
    last: AtomicU64,
}

impl Trouble {
    pub(super) fn new() -> Self {
        Self(Arc::new(TroubleClock { epoch: Instant::now(), last: AtomicU64::new(0) }))
    }

    /// Notes that there is trouble now.
    pub(super) fn mark(&self) {
        self.0.last.fetch_max(self.now_us() + 1, Ordering::SeqCst);
    }

    /// Tells whether a window of the request may reach back to the last trouble.
    fn matters_to(&self, check: &Check) -> bool {
        let last = self.0.last.load(Ordering::SeqCst);
        let horizons = check.partitions.iter().map(|partition| partition.policy.horizon_us());
        last > 0 && self.now_us() < last.saturating_add(horizons.max().unwrap_or(0))
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
