//! [`Backlog`]: the changes of one log.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ahash::RandomState;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::LogId;

/// How long after a failed write-back no check waits for another one. The background task tries
/// again sooner, unless there are very many logs. On a Cluster a single node may fail without the
/// circuit breaker opening. The requests of its logs must not each wait for a timeout.
const RETRY_PAUSE: Duration = Duration::from_millis(750);

#[derive(Clone, Copy, Debug)]
pub(in crate::store::failover) struct Change {
    pub(in crate::store::failover) id: Uuid,
    pub(in crate::store::failover) kind: ChangeKind,
    pub(in crate::store::failover) cost: u32,
    /// When the change was added. For an admission, when the request was admitted.
    pub(in crate::store::failover) at: Instant,
    /// Differs from that of the change that it replaces.
    pub(super) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::failover) enum ChangeKind {
    /// The request was admitted without the store, which has to count it.
    Restore,
    /// The request was cancelled or refused, and the store may have counted it.
    Cancel,
    /// The request takes another number of places than the store may have counted.
    Settle,
    /// The request was admitted without the store, and settled since.
    RestoreAndSettle,
}

impl ChangeKind {
    pub(in crate::store::failover) fn restores(self) -> bool {
        matches!(self, Self::Restore | Self::RestoreAndSettle)
    }
}

impl Change {
    /// Returns the change that has the effect of an earlier one of the same request and of this one.
    fn after(self, earlier: Self) -> Self {
        match (earlier.kind, self.kind) {
            // A cancelled request has no place left to settle.
            (ChangeKind::Cancel, ChangeKind::Settle) => {
                Self { kind: earlier.kind, cost: earlier.cost, ..self }
            }
            // The admission may be being written, with its earlier number of places.
            (kind, ChangeKind::Settle) if kind.restores() => {
                Self { kind: ChangeKind::RestoreAndSettle, at: earlier.at, ..self }
            }
            _ => self,
        }
    }

    /// Returns whether the request has left all windows of the log, so that no write-back is
    /// needed.
    fn has_expired(&self, log: &LogId, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.at);
        age >= Duration::from_micros(log.policy.longest_window_us())
    }
}

type WriteResult = Option<Result<(), StoreError>>;

/// The changes of one log.
///
/// One writer at a time writes them back, so that the changes of one request arrive in the order in
/// which they were added. Other callers wait for the writer's result.
#[derive(Debug)]
pub(super) struct Backlog {
    /// With the longest policy under which a change was added or written. The policy may have been
    /// replaced meanwhile, and it says how long a change matters.
    pub(super) log: LogId,
    /// Differs from that of an earlier backlog of the same log.
    pub(super) number: u64,
    /// By their numbers, so in the order in which they were added.
    pub(super) changes: BTreeMap<u64, Change>,
    pub(super) numbers: HashMap<Uuid, u64, RandomState>,
    pub(super) places: usize,
    resync: Resync,
    is_resync_new: bool,
    /// The result of the writer. Closed when the writer is gone, also if its task was dropped.
    writing: Option<watch::Receiver<WriteResult>>,
    failed_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::failover) enum Resync {
    #[default]
    NotNeeded,
    /// The admissions after this timestamp are left to write.
    After(Option<u64>),
}

#[derive(Debug)]
pub(in crate::store::failover) enum Claim {
    Nothing,
    Write(LogWriter),
    /// Another caller writes. Its result is to be waited for.
    Wait(watch::Receiver<WriteResult>),
}

/// The right to write back one log, and what to write.
#[derive(Debug)]
pub(in crate::store::failover) struct LogWriter {
    pub(in crate::store::failover) log: LogId,
    pub(in crate::store::failover) changes: Vec<Change>,
    pub(in crate::store::failover) resync: Resync,
    pub(super) result: watch::Sender<WriteResult>,
}

impl Backlog {
    pub(super) fn new(log: LogId, number: u64) -> Self {
        Self {
            log,
            number,
            changes: BTreeMap::new(),
            numbers: HashMap::default(),
            places: 0,
            resync: Resync::default(),
            is_resync_new: false,
            writing: None,
            failed_at: None,
        }
    }

    pub(super) fn keep_longest_policy(&mut self, log: &LogId) {
        if log.policy.longest_window_us() > self.log.policy.longest_window_us() {
            self.log = log.clone();
        }
    }

    pub(super) fn has_changes_until(&self, number: u64) -> bool {
        self.changes.first_key_value().is_some_and(|(first, _)| *first <= number)
    }

    /// Returns whether checks must not wait for the write-back: the last one has failed, and it is
    /// too early for another one or another caller is trying.
    ///
    /// A failure from before the last new connection does not count.
    pub(super) fn is_failing(&self, now: Instant, connected_at: Option<Instant>) -> bool {
        let is_early = |at| now.saturating_duration_since(at) < RETRY_PAUSE;
        let failed_at = self.failed_at.filter(|at| connected_at.is_none_or(|since| *at > since));
        failed_at.is_some_and(|at| is_early(at) || self.is_writing())
    }

    pub(super) fn needs_resync(&self) -> bool {
        self.resync != Resync::NotNeeded
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.needs_resync() && !self.is_writing()
    }

    fn is_writing(&self) -> bool {
        // An error means that the writer is gone.
        self.writing.as_ref().is_some_and(|result| result.has_changed().is_ok())
    }

    /// Adds a change, which replaces an earlier one of the same request. Returns whether there was
    /// none.
    pub(super) fn add(&mut self, change: Change) -> bool {
        let earlier = self.numbers.insert(change.id, change.number);
        let before = earlier.and_then(|number| self.changes.remove(&number));
        let change = before.map_or(change, |before| change.after(before));
        self.places += change.cost as usize;
        self.places -= before.map_or(0, |before| before.cost as usize);
        self.changes.insert(change.number, change);
        before.is_none()
    }

    fn remove(&mut self, number: u64) {
        if let Some(removed) = self.changes.remove(&number) {
            self.numbers.remove(&removed.id);
            self.places -= removed.cost as usize;
        }
    }

    pub(super) fn request_resync(&mut self) {
        self.resync = Resync::After(None);
        self.is_resync_new = true;
    }

    pub(super) fn claim(&mut self, max_places: usize) -> Claim {
        if let Some(result) = self.writing.as_ref().filter(|_| self.is_writing()) {
            return Claim::Wait(result.clone());
        }
        self.writing = None;
        if self.is_empty() {
            return Claim::Nothing;
        }
        let changes = self.first_changes(max_places);
        let (result, writing) = watch::channel(None);
        self.writing = Some(writing);
        self.is_resync_new = false;
        Claim::Write(LogWriter { log: self.log.clone(), changes, resync: self.resync, result })
    }

    fn first_changes(&self, max_places: usize) -> Vec<Change> {
        let mut places = 0;
        let fits = |change: &Change| {
            let is_first = places == 0;
            places += change.cost.max(1) as usize;
            is_first || places <= max_places
        };
        self.changes.values().copied().take_while(fits).collect()
    }

    pub(super) fn finish(
        &mut self,
        writer: &LogWriter,
        is_done: bool,
        resynced_until_us: Option<u64>,
    ) -> usize {
        self.writing = None;
        self.failed_at = (!is_done).then(Instant::now);
        if !is_done {
            return 0;
        }
        if !self.is_resync_new && self.resync == writer.resync {
            let left = |until_us| Resync::After(Some(until_us));
            self.resync = resynced_until_us.map_or(Resync::NotNeeded, left);
        }
        let before = self.changes.len();
        writer.changes.iter().for_each(|change| self.remove(change.number));
        before - self.changes.len()
    }

    pub(super) fn drop_expired(&mut self, now: Instant) -> usize {
        let before = self.changes.len();
        // The oldest come first: one that has not expired ends the search.
        while let Some((&number, change)) = self.changes.first_key_value()
            && change.has_expired(&self.log, now)
        {
            self.remove(number);
        }
        before - self.changes.len()
    }

    pub(super) fn clear(&mut self) -> usize {
        self.resync = Resync::NotNeeded;
        self.numbers.clear();
        self.places = 0;
        std::mem::take(&mut self.changes).len()
    }
}
