//! Decides by the logs and bans in this process.

use std::borrow::Cow;

use tokio::time::Instant;

use super::journal::ChangeKind;
use super::{CheckResult, Failover, immediate, is_local};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::store::underlying::Underlying;
use crate::store::{BanStore, Store};
use crate::window::{Check, DecidedBy, Explanation, Outcome, STRIKES_REASON};

impl<S: Underlying> Failover<S> {
    /// Decides on a request for which the store failed, by its failure policy.
    pub(super) fn decide_without_store(&self, check: &Check, error: StoreError) -> CheckResult {
        self.0.outage.record_failure();
        let result = self.decide_locally(check, &error);
        let is_admitted = matches!(&result, Ok(outcome) if outcome.admitted);
        // With the policy `Open` the request passes, so the store may keep it.
        if error.may_have_counted() && !is_admitted && check.on_failure != FailurePolicy::Open {
            let _ = self.add_change(check, ChangeKind::Cancel);
        }
        // Again, after the change: a request that was sent to the store without seeing the change
        // is compared with the local log for a whole window after it.
        self.0.outage.record_failure();
        result
    }

    /// Decides by the local logs, and adds an admission to the journal. Returns the error if the
    /// failure policy is not `Local`, or if the cost is above the share of this process.
    pub(super) fn decide_locally(&self, check: &Check, error: &StoreError) -> CheckResult {
        let share = share(check, error)?;
        let mut outcome = immediate(self.0.local.admit(&share))?;
        if outcome.admitted && check.cost > 0 {
            self.add_change(check, ChangeKind::Restore).inspect_err(|_| {
                let _ = immediate(self.0.local.cancel(check));
            })?;
        }
        // The caller gets an outcome and does not report the error.
        error.report();
        outcome.decided_by = DecidedBy::LocalLog;
        Ok(outcome)
    }

    /// Peeks at the local logs, with the errors of [`Failover::decide_locally`].
    pub(super) fn peek_locally(&self, check: &Check, error: &StoreError) -> CheckResult {
        let mut outcome = immediate(self.0.local.peek(&*share(check, error)?))?;
        outcome.decided_by = DecidedBy::LocalLog;
        Ok(outcome)
    }

    /// Explains the local logs, with the errors of [`Failover::decide_locally`].
    pub(super) fn explain_locally(
        &self,
        check: &Check,
        error: &StoreError,
    ) -> Result<Vec<Explanation>, StoreError> {
        let mut explained = immediate(self.0.local.explain(&*share(check, error)?))?;
        explained.iter_mut().for_each(|it| it.decided_by = DecidedBy::LocalLog);
        Ok(explained)
    }

    /// Imposes the bans in an outcome on the local keys, for an outage.
    ///
    /// A local ban ends no later than the store's, so a client that has waited as long as the store
    /// said is not banned here.
    pub(super) fn impose_bans_locally(&self, check: &Check, sent: Instant, outcome: &Outcome) {
        if !is_local(check) || outcome.from_cache {
            return;
        }
        for (log, log_outcome) in check.logs.iter().zip(outcome.logs()) {
            if log_outcome.ban().is_banned() {
                let length = log_outcome.ban().remaining().saturating_sub(sent.elapsed());
                let _ = self.0.local.restore_ban(log, length, STRIKES_REASON, outcome.timestamp);
            }
        }
    }

    /// Lifts the local bans of a request that the store has admitted: they were lifted there.
    pub(super) fn lift_bans_locally(&self, check: &Check) {
        for log in &check.logs {
            if self.0.local.ban_snapshot(log).is_some() {
                let _ = immediate(self.0.local.lift(log));
            }
        }
    }
}

/// Returns the check at the share of this process, see [`FailurePolicy::Local`], or the error.
fn share<'a>(check: &'a Check, error: &StoreError) -> Result<Cow<'a, Check>, StoreError> {
    let FailurePolicy::Local { instances } = check.on_failure else { return Err(error.clone()) };
    check.shared_among(instances).ok_or_else(|| error.clone())
}
