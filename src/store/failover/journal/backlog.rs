//! [`Backlog`]: what the store has yet to be told about one log.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ahash::RandomState;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::LogId;

/// How long after a failed turn no check begins another one. The background task tries again sooner,
/// unless there are very many logs. On a Cluster one node may fail that no circuit breaker stands in
/// front of: its logs are not to cost their requests a timeout.
const TURN_PAUSE: Duration = Duration::from_millis(750);

/// What has become of a request that was decided on without the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::failover) struct Change {
    pub(in crate::store::failover) id: Uuid,
    pub(in crate::store::failover) kind: ChangeKind,
    pub(in crate::store::failover) cost: u32,
    /// When the request was admitted.
    pub(in crate::store::failover) at: Instant,
    /// Tells a change from the one that took its place while it was under way.
    pub(super) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::failover) enum ChangeKind {
    /// The request was admitted without the store, which is to count it.
    Restore,
    /// The request was not admitted after all, and the store may have counted it.
    Cancel,
}

impl Change {
    /// Tells whether the request has left all windows of the log, so that nothing is left to do.
    fn is_over(&self, log: &LogId, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.at);
        age >= Duration::from_micros(log.policy.longest_window_us())
    }
}

type Outcome = Option<Result<(), StoreError>>;

/// What the store has yet to be told about one log.
///
/// One caller at a time tells it, the leader, so that what is told of one request arrives in the
/// order in which it was noted. The others wait for the leader's outcome.
#[derive(Debug)]
pub(super) struct Backlog {
    /// With the longest policy of those that changes were noted under, which says how long they
    /// matter: it may have been replaced meanwhile.
    log: LogId,
    /// Tells the backlog from an earlier one of the same log.
    number: u64,
    changes: HashMap<Uuid, Change, RandomState>,
    /// The changes in the order they were noted, beside some that are done.
    order: VecDeque<Uuid>,
    /// How many places the changes take.
    places: usize,
    survey: Survey,
    /// Whether a survey was begun after the leader began its turn.
    is_survey_new: bool,
    /// Ends when the leader does, also if its future is dropped.
    under_way: Option<watch::Receiver<Outcome>>,
    /// When the last turn has failed, if it did.
    failed_at: Option<Instant>,
}

/// How far the store was told all that is known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Survey {
    #[default]
    NotWanted,
    /// Of the admissions after this timestamp it has yet to be told.
    After(Option<u64>),
}

/// Whose turn it is to tell the store about a log.
#[derive(Debug)]
pub(in crate::store::failover) enum Turn {
    /// There is nothing to tell.
    Nothing,
    /// The caller's.
    Lead(Lead),
    /// That of another caller, whose outcome is to be waited for.
    Wait(watch::Receiver<Outcome>),
}

/// What the caller whose turn it is has to tell the store about a log.
#[derive(Debug)]
pub(in crate::store::failover) struct Lead {
    pub(in crate::store::failover) log: LogId,
    pub(in crate::store::failover) changes: Vec<Change>,
    /// Whether, and after which timestamp, all that is known here is to be told.
    pub(in crate::store::failover) survey: Option<Option<u64>>,
    outcome: watch::Sender<Outcome>,
}

impl Lead {
    /// Tells those who wait how the turn has ended.
    pub(super) fn tell(&self, outcome: &Result<(), StoreError>) {
        self.outcome.send_replace(Some(outcome.clone()));
    }
}

impl Backlog {
    pub(super) fn new(log: LogId, number: u64) -> Self {
        Self {
            log,
            number,
            changes: HashMap::default(),
            order: VecDeque::new(),
            places: 0,
            survey: Survey::default(),
            is_survey_new: false,
            under_way: None,
            failed_at: None,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn log(&self) -> &LogId {
        &self.log
    }

    /// Has what is noted matter for as long as the policy of `log` says, if that is longer.
    pub(super) fn lengthen(&mut self, log: &LogId) {
        if log.policy.longest_window_us() > self.log.policy.longest_window_us() {
            self.log = log.clone();
        }
    }

    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn places(&self) -> usize {
        self.places
    }

    pub(super) fn has(&self, id: Uuid) -> bool {
        self.changes.contains_key(&id)
    }

    /// Tells whether a change was noted up to this number.
    pub(super) fn has_until(&self, number: u64) -> bool {
        self.changes.values().any(|change| change.number <= number)
    }

    /// Tells whether no check is to wait for this log: the store has failed at the last turn, and it is
    /// too early for another one, or another caller is at it.
    ///
    /// A failure from before the last reconnection says nothing.
    pub(super) fn is_stalled(&self, now: Instant, reconnected_at: Option<Instant>) -> bool {
        let is_early = |at| now.saturating_duration_since(at) < TURN_PAUSE;
        let failed_at = self.failed_at.filter(|at| reconnected_at.is_none_or(|since| *at > since));
        failed_at.is_some_and(|at| is_early(at) || self.is_under_way())
    }

    pub(super) fn is_surveyed(&self) -> bool {
        self.survey != Survey::NotWanted
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.survey == Survey::NotWanted && !self.is_under_way()
    }

    fn is_under_way(&self) -> bool {
        // An error says that the leader is gone.
        self.under_way.as_ref().is_some_and(|outcome| outcome.has_changed().is_ok())
    }

    /// Notes a change, in place of the one there was for the request. Says whether there was none.
    pub(super) fn note(&mut self, change: Change) -> bool {
        let before = self.changes.insert(change.id, change);
        self.places += change.cost as usize;
        self.places -= before.map_or(0, |before| before.cost as usize);
        if before.is_none() {
            self.order.push_back(change.id);
        }
        before.is_none()
    }

    fn remove(&mut self, id: Uuid) {
        let removed = self.changes.remove(&id);
        self.places -= removed.map_or(0, |removed| removed.cost as usize);
    }

    /// Has all told that is known here, from the beginning.
    pub(super) fn begin_survey(&mut self) {
        self.survey = Survey::After(None);
        self.is_survey_new = true;
    }

    pub(super) fn turn(&mut self, most: usize) -> Turn {
        if let Some(outcome) = self.under_way.as_ref().filter(|_| self.is_under_way()) {
            return Turn::Wait(outcome.clone());
        }
        self.under_way = None;
        if self.is_empty() {
            return Turn::Nothing;
        }
        let survey = match self.survey {
            Survey::NotWanted => None,
            Survey::After(after_us) => Some(after_us),
        };
        let changes = self.first_changes(most);
        let (outcome, waiting) = watch::channel(None);
        self.under_way = Some(waiting);
        self.is_survey_new = false;
        Turn::Lead(Lead { log: self.log.clone(), changes, survey, outcome })
    }

    /// Returns the first changes that take up to `most` places, and at least one change.
    fn first_changes(&self, most: usize) -> Vec<Change> {
        let mut places = 0;
        let changes = self.order.iter().filter_map(|id| self.changes.get(id).copied());
        let fits = |change: &Change| {
            let is_first = places == 0;
            places += change.cost.max(1) as usize;
            is_first || places <= most
        };
        changes.take_while(fits).collect()
    }

    /// Notes how a turn has ended, and returns how many changes are done.
    pub(super) fn finish(
        &mut self,
        lead: &Lead,
        is_done: bool,
        surveyed_until_us: Option<u64>,
    ) -> usize {
        self.under_way = None;
        self.failed_at = (!is_done).then(Instant::now);
        if !is_done {
            return 0;
        }
        if !self.is_survey_new
            && self.survey == lead.survey.map_or(Survey::NotWanted, Survey::After)
        {
            self.survey = surveyed_until_us
                .map_or(Survey::NotWanted, |until_us| Survey::After(Some(until_us)));
        }
        let before = self.changes.len();
        for change in &lead.changes {
            if self.changes.get(&change.id).is_some_and(|noted| noted.number == change.number) {
                self.remove(change.id);
            }
        }
        self.tidy();
        before - self.changes.len()
    }

    /// Drops what has left all windows, and returns how many changes that were.
    pub(super) fn drop_over(&mut self, now: Instant) -> usize {
        let before = self.changes.len();
        // The oldest first: one that is not over ends the search.
        while let Some(id) = self.order.front() {
            match self.changes.get(id) {
                Some(change) if !change.is_over(&self.log, now) => break,
                _ => {
                    let id = *id;
                    self.remove(id);
                }
            }
            self.order.pop_front();
        }
        before - self.changes.len()
    }

    /// Drops everything that was to be told, and returns how many changes that were.
    pub(super) fn forget(&mut self) -> usize {
        self.survey = Survey::NotWanted;
        self.order.clear();
        self.places = 0;
        std::mem::take(&mut self.changes).len()
    }

    /// Drops what is done from the order: from its front at once, for that is where it is.
    fn tidy(&mut self) {
        while self.order.front().is_some_and(|id| !self.changes.contains_key(id)) {
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.changes.len() + 64 {
            self.order.retain(|id| self.changes.contains_key(id));
        }
    }
}
