//! Accepts the outcomes of the store, unless the local logs contradict them.

use tokio::time::Instant;

use super::journal::ChangeKind;
use super::{CheckResult, Failover, immediate, is_local};
use crate::error::StoreError;
use crate::store::Store;
use crate::store::underlying::Underlying;
use crate::window::{Check, LogId, LogOutcome, Outcome, Rollback};

/// How often the check of a conflicting admission is repeated. Once is enough, unless a concurrent
/// local decision takes the place.
const MAX_ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Conflict;

enum Comparison {
    /// The store holds at least as much.
    Agrees,
    /// The store lacks admissions, but the request fits nevertheless.
    StoreIncomplete,
    /// The request is one too many for the local log, or its key is banned.
    Conflicts,
}

impl<S: Underlying> Failover<S> {
    /// Accepts the result of a check, or returns the conflict. An error makes the failure policy
    /// decide.
    pub(super) fn accept(
        &self,
        check: &Check,
        sent: Instant,
        result: CheckResult,
    ) -> Result<CheckResult, Conflict> {
        match result {
            Ok(outcome) if outcome.admitted => self.accept_admission(check, sent, outcome).map(Ok),
            Ok(outcome) => Ok(Ok(self.accept_denial(check, sent, outcome))),
            Err(error) if !error.is_outage() => Ok(Err(error)),
            Err(error) => Ok(self.decide_without_store(check, error)),
        }
    }

    /// Records an admission by the store in the local log. In an outage, compares the two.
    fn accept_admission(
        &self,
        check: &Check,
        sent: Instant,
        outcome: Outcome,
    ) -> Result<Outcome, Conflict> {
        if !is_local(check) {
            return Ok(outcome);
        }
        // At the local capacity nothing is recorded, and an outage refuses the key if it is new.
        let at = outcome.timestamp.map_or(sent, |it| self.0.clock.local(it, sent));
        let _ = self.0.local.record(check, at);
        if !self.0.outage.may_affect(check) {
            self.lift_bans_locally(check);
            return Ok(outcome);
        }
        match self.compare(check, &outcome) {
            Comparison::Agrees => Ok(outcome),
            Comparison::StoreIncomplete => {
                self.request_resync(&check.logs, false);
                Ok(outcome)
            }
            Comparison::Conflicts => Err(Conflict),
        }
    }

    /// Compares an admission by the store with the local logs, which hold it too.
    ///
    /// The local logs hold only what this process has admitted, each entry with a timestamp that is
    /// later than the store's by the least delay of a reply. So they hold no more than a store that
    /// has lost nothing, except for that moment after an entry has left the store's window. The number
    /// of places left may also differ without a loss if a reply has overtaken another one.
    fn compare(&self, check: &Check, outcome: &Outcome) -> Comparison {
        let is_banned = |log: &LogId| self.0.local.ban_snapshot(log).is_some();
        if check.logs.iter().any(is_banned) {
            return Comparison::Conflicts;
        }
        let costless = check.at_cost(0);
        let Ok(local) = immediate(self.0.local.peek(&costless)) else { return Comparison::Agrees };
        // First, because a log above its limit has no places left, as one at its limit.
        if local.logs().iter().any(LogOutcome::is_full) {
            return Comparison::Conflicts;
        }
        let here = local.logs().iter().flat_map(LogOutcome::states);
        let there = outcome.logs().iter().flat_map(LogOutcome::states);
        if here.zip(there).any(|(here, there)| here.remaining < there.remaining) {
            return Comparison::StoreIncomplete;
        }
        Comparison::Agrees
    }

    /// Cancels a conflicting admission, resyncs its logs, and checks the request again. Callers box the
    /// future, because conflicts are rare and it is large.
    ///
    /// Three interleavings lead here, and the store itself decides in each:
    ///
    /// - The store has lost its data. The resync restores it, and the store denies.
    /// - A request of the same log was decided locally while this one was under way. The write-back
    ///   adds it, and the store denies or has room for both.
    /// - Another process has reset the log or lifted the ban. The store reports that, the local log
    ///   is emptied, and the request is admitted again.
    pub(super) async fn resolve(&self, check: &Check, _conflict: Conflict) -> CheckResult {
        for _ in 0..MAX_ATTEMPTS {
            let _ = immediate(self.0.local.cancel(check));
            self.request_resync(&check.logs, true);
            self.add_change(check, ChangeKind::Cancel)?;
            if self.is_log_long(&check.logs)
                || self.write_back_and_resync(&check.logs).await.is_err()
            {
                break;
            }
            let sent = Instant::now();
            let result = self.0.store.admit(check).await;
            if let Ok(result) = self.accept(check, sent, result) {
                return result;
            }
        }
        let _ = immediate(self.0.local.cancel(check));
        self.add_change(check, ChangeKind::Cancel)?;
        self.decide_locally(check, &StoreError::Unavailable)
    }

    pub(super) async fn admit_after_changes(&self, check: &Check) -> CheckResult {
        if is_local(check) && self.is_write_back_slow(&check.logs) {
            return self.decide_locally(check, &StoreError::Unavailable);
        }
        match self.write_back_changes(&check.logs).await {
            Ok(()) => {}
            Err(error) if !error.is_outage() => return Err(error),
            // The store has not seen this request: it was the write-back that failed.
            Err(_) => return self.decide_without_store(check, StoreError::Unavailable),
        }
        let sent = Instant::now();
        let result = self.0.store.admit(check).await;
        match self.accept(check, sent, result) {
            Ok(result) => result,
            Err(conflict) => Box::pin(self.resolve(check, conflict)).await,
        }
    }

    fn accept_denial(&self, check: &Check, sent: Instant, outcome: Outcome) -> Outcome {
        if outcome.rollback == Rollback::Unfinished {
            // If the journal is full, the denial still stands: another log is full.
            let _ = self.add_change(check, ChangeKind::Cancel);
        }
        self.impose_bans_locally(check, sent, &outcome);
        outcome
    }
}
