//! What an answer of the store means, beside what is known here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::journal::ChangeKind;
use super::{Decided, Failover, is_local, now};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::store::{BanStore, Store};
use crate::window::{Check, DecidedBy, LogId, LogOutcome, Outcome, Rollback, STRIKES_REASON};

/// How often the store is asked again about an admission that looks one too many. Once is enough,
/// unless a request that is decided here at the same time takes the place.
const MOST_ATTEMPTS: usize = 3;

/// An admission by the store that what is known here contradicts.
#[derive(Debug)]
pub(super) struct Doubt;

/// What the local logs say to an admission by the store.
enum Comparison {
    /// The store knows at least as much.
    Agrees,
    /// The store lacks something, and the request fits all the same.
    StoreLacks,
    /// With what is known here it is one too many, or the key is banned.
    Contradicts,
}

impl<S: Store> Failover<S> {
    /// Decides by the answer to a check that was sent at some time.
    pub(super) async fn conclude(
        &self,
        check: &Arc<Check>,
        sent: Instant,
        answer: Decided,
    ) -> Decided {
        match self.settle(check, Some(sent), answer) {
            Ok(decided) => decided,
            // Boxed, so that a decision does not carry room for what hardly ever happens.
            Err(doubt) => Box::pin(self.resolve(check, doubt)).await,
        }
    }

    /// Draws conclusions from an answer of the store, or says that it is in doubt. An answer that
    /// came at once was not sent for.
    pub(super) fn settle(
        &self,
        check: &Arc<Check>,
        sent: Option<Instant>,
        answer: Decided,
    ) -> Result<Decided, Doubt> {
        match answer {
            Ok(outcome) if outcome.admitted => self.admitted(check, sent, outcome).map(Ok),
            Ok(outcome) => Ok(Ok(self.denied(check, sent, outcome))),
            Err(error) if error.is_impossible() => Ok(Err(error)),
            Err(error) => Ok(self.without_the_store(check, error)),
        }
    }

    /// Records here what the store has admitted, and compares it with what is known here if there
    /// was an outage.
    fn admitted(
        &self,
        check: &Arc<Check>,
        sent: Option<Instant>,
        outcome: Outcome,
    ) -> Result<Outcome, Doubt> {
        if !is_local(check) {
            return Ok(outcome);
        }
        // The store has counted the request after it was sent: its entry leaves here no later than
        // there, so that a client that has waited as long as it was told is not denied here.
        //
        // At the capacity it is not known here, and a new key will be refused in an outage.
        let _ = self.0.local.record(check, age_of(sent));
        if !self.0.outage.matters_to(check) {
            self.forget_bans(check);
            return Ok(outcome);
        }
        match self.compare(check, &outcome) {
            Comparison::Agrees => Ok(outcome),
            Comparison::StoreLacks => {
                self.survey(&check.logs, false);
                Ok(outcome)
            }
            Comparison::Contradicts => Err(Doubt),
        }
    }

    /// Compares an admission by the store with the local logs, which hold it too.
    ///
    /// The local logs hold what this process alone has admitted, each entry with a timestamp no
    /// later than the store's. So they never hold more than a store that has lost nothing: what they
    /// hold now lies in one window of the store's own clock. Only the number of places left may
    /// differ without a loss, if a reply has overtaken another one.
    fn compare(&self, check: &Arc<Check>, outcome: &Outcome) -> Comparison {
        let is_banned = |log: &LogId| self.0.local.ban_snapshot(log).is_some();
        if check.logs.iter().any(is_banned) {
            return Comparison::Contradicts;
        }
        let costless = Arc::new(Check { cost: 0, ..Check::clone(check) });
        let Ok(held) = now(self.0.local.peek(&costless)) else { return Comparison::Agrees };
        // Above the limit nothing remains, however much is above it: so that is looked at first.
        if held.logs().iter().any(LogOutcome::is_full) {
            return Comparison::Contradicts;
        }
        let here = held.logs().iter().flat_map(LogOutcome::states);
        let there = outcome.logs().iter().flat_map(LogOutcome::states);
        if here.zip(there).any(|(here, there)| here.remaining < there.remaining) {
            return Comparison::StoreLacks;
        }
        Comparison::Agrees
    }

    /// Takes an admission back that is in doubt, tells the store all that is known here, and asks
    /// it again.
    ///
    /// Three interleavings lead here, and each ends with the store's own answer:
    /// - The store has lost its memory. It is told, and denies.
    /// - A request of the same log was decided here while this one was under way. The store is told
    ///   of that one, and denies or finds a place for both.
    /// - Another process has reset the log or lifted the ban. The store says so, what is known here
    ///   is forgotten, and the request is admitted again.
    pub(super) async fn resolve(&self, check: &Arc<Check>, _doubt: Doubt) -> Decided {
        for _ in 0..MOST_ATTEMPTS {
            let _ = now(self.0.local.cancel(check));
            self.survey(&check.logs, true);
            self.note(check, ChangeKind::Cancel)?;
            if self.is_long(&check.logs) || self.tell_everything(&check.logs).await.is_err() {
                break;
            }
            let sent = Instant::now();
            let answer = self.0.store.admit(check).await;
            if let Ok(decided) = self.settle(check, Some(sent), answer) {
                return decided;
            }
        }
        let _ = now(self.0.local.cancel(check));
        self.note(check, ChangeKind::Cancel)?;
        self.decide_here(check, &StoreError::Unavailable)
    }

    /// Decides on a request of logs that the store has yet to be told about.
    pub(super) async fn admit_after_changes(&self, check: &Arc<Check>) -> Decided {
        if is_local(check) && self.is_not_worth_waiting(&check.logs) {
            return self.decide_here(check, &StoreError::Unavailable);
        }
        if self.tell_changes(&check.logs).await.is_err() {
            // What failed was not this request, which the store has not seen.
            return self.without_the_store(check, StoreError::Unavailable);
        }
        // Only now: the local entry is not to leave long before the store's.
        let sent = Instant::now();
        let answer = self.0.store.admit(check).await;
        self.conclude(check, sent, answer).await
    }

    fn denied(&self, check: &Arc<Check>, sent: Option<Instant>, outcome: Outcome) -> Outcome {
        if outcome.rollback == Rollback::Unfinished {
            // The denial stands: another log is full, whatever becomes of this one.
            let _ = self.note(check, ChangeKind::Cancel);
        }
        self.remember_bans(check, sent, &outcome);
        outcome
    }

    /// Bans here the keys that are banned there, for when the store does not answer.
    ///
    /// A ban ends here no later than there, so that a client that has waited as long as it was told
    /// is not banned again.
    fn remember_bans(&self, check: &Arc<Check>, sent: Option<Instant>, outcome: &Outcome) {
        if !is_local(check) || outcome.from_cache {
            return;
        }
        for (log, of_log) in check.logs.iter().zip(outcome.logs()) {
            if of_log.ban().is_banned() {
                let length = of_log.ban().remaining().saturating_sub(age_of(sent));
                let _ = self.0.local.restore_ban(log, length, STRIKES_REASON, outcome.timestamp);
            }
        }
    }

    /// Lifts here what was lifted there, now that the store has let a request pass.
    fn forget_bans(&self, check: &Arc<Check>) {
        for log in &check.logs {
            if self.0.local.ban_snapshot(log).is_some() {
                let _ = now(self.0.local.lift(log));
            }
        }
    }

    pub(super) fn without_the_store(&self, check: &Arc<Check>, error: StoreError) -> Decided {
        self.0.outage.mark();
        let decided = self.decide_here(check, &error);
        if error.may_have_counted() && !matches!(&decided, Ok(outcome) if outcome.admitted) {
            // An open policy lets the request pass: then it is counted rightly.
            if check.on_failure != FailurePolicy::Open {
                let _ = self.note(check, ChangeKind::Cancel);
            }
        }
        // Again, for a request that did not see the change in time.
        self.0.outage.mark();
        decided
    }

    pub(super) fn decide_here(&self, check: &Arc<Check>, error: &StoreError) -> Decided {
        let FailurePolicy::Local { instances } = check.on_failure else {
            return Err(error.clone());
        };
        // A request of more places than this process has is for the whole fleet to decide.
        let Some(share) = check.shared_among(instances) else { return Err(error.clone()) };
        let mut outcome = now(self.0.local.admit(&share))?;
        if outcome.admitted && check.cost > 0 {
            self.note(check, ChangeKind::Restore).inspect_err(|_| {
                let _ = now(self.0.local.cancel(check));
            })?;
        }
        // The caller gets an answer, and will not report the error.
        error.report();
        outcome.decided_by = DecidedBy::LocalLog;
        Ok(outcome)
    }

    pub(super) fn peek_here(&self, check: &Arc<Check>, error: &StoreError) -> Decided {
        let FailurePolicy::Local { instances } = check.on_failure else {
            return Err(error.clone());
        };
        let Some(share) = check.shared_among(instances) else { return Err(error.clone()) };
        let mut outcome = now(self.0.local.peek(&share))?;
        outcome.decided_by = DecidedBy::LocalLog;
        Ok(outcome)
    }
}

/// How long ago a check was sent; an answer that came at once was not sent for.
fn age_of(sent: Option<Instant>) -> Duration {
    sent.map_or(Duration::ZERO, |sent| sent.elapsed())
}
