//! Checks of logs in several Cluster slots, one slot after the other.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::task::JoinError;

use super::requests::Mode;
use super::{Inner, RedisStore, Sent, is_local};
use crate::error::StoreError;
use crate::policy::Counts;
use crate::window::{Check, LogId, LogOutcome, Outcome};

/// Puts together what the parts of a check have come to.
fn merge(check: &Check, parts: &[Arc<Check>], outcomes: Vec<Outcome>) -> Outcome {
    let admitted = outcomes.iter().all(|outcome| outcome.admitted);
    // The latest: the request is not admitted before all logs have recorded it.
    let timestamp = outcomes.iter().filter_map(|outcome| outcome.timestamp).max();
    let empty = |log: &LogId| LogOutcome::empty(&log.policy);
    let mut logs: SmallVec<[LogOutcome; 2]> = check.logs.iter().map(empty).collect();
    for (part, mut outcome) in parts.iter().zip(outcomes) {
        if outcome.admitted && !admitted {
            // The state after the cancellation.
            for ((log, cost), outcome) in part.costs().zip(outcome.logs_mut()) {
                let cost = log.settled_cost(0).map_or(0, |left| cost - left);
                for (quota, state) in log.policy.quotas().iter().zip(outcome.quotas_mut()) {
                    (state.remaining, state.wait_us) = (state.remaining + cost, 0);
                    if state.remaining == quota.limit() {
                        state.reset_us = 0;
                    }
                }
            }
        }
        for (log, outcome) in part.logs.iter().zip(outcome.logs()) {
            if let Some(index) = check.logs.iter().position(|it| it == log) {
                logs[index] = outcome.clone();
            }
        }
    }
    let mut merged = Outcome::new(admitted, logs);
    merged.timestamp = timestamp;
    merged
}

/// A request that some of its logs may have. It is cancelled if the caller has gone, who would decide instead.
struct Leftover(Option<(RedisStore, Arc<Check>)>);

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Some((store, check)) = self.0.take() {
            let _ = store.0.journal_cancellation(&check);
            store.ensure_task();
        }
    }
}

/// The runtime of a task ends, or the task has panicked.
pub(super) fn task_has_ended(error: JoinError) -> StoreError {
    let source = StoreError::Protocol { message: error.to_string() };
    StoreError::Uncertain { source: Box::new(source) }
}

// If a later key denies, the request is cancelled in the logs of the earlier keys, so that it does not
// stay in only some of its logs. Until then the earlier logs hold a request that will not pass.
//
// # Interleavings
//
// - Another check of an earlier log arrives before the cancellation. It may be denied because of a request
//   that does not pass: too few are admitted for the length of a round trip, never too many. Then the
//   denials of the earlier logs are forgotten. That of the later one is true. Tests: `rolled_back_request_leaves_no_denial`
//   and `denial_beside_another_rule_is_remembered`.
// - Two logs of distinct values are in several slots, and the later one denies. The value stays in the earlier
//   one until it has left the window, as if it was seen.
// - A client hangs up between two keys. The calls run in a task of their own, which finishes or cancels
//   what it began. If it can't find out what became of it, it is cancelled later, unless the caller is still
//   there to decide. Test: `hang_up_before_a_node_fails_leaves_no_trace`.
// - A caller leaves a cancellation or settlement between two keys. It runs in a task of its own, too. Test:
//   `cancellation_whose_caller_leaves_is_made_in_every_slot`.
// - A node fails after a log has denied. The denial stands, and if a cancellation has failed, the request
//   is cancelled later. Tests: `later_node_is_silent` and `denial_stands_if_its_rollback_fails`.
// - A node fails after earlier logs have admitted. The failure policy decides under the same identity, and cancels what it
//   does not admit. Here nothing is cancelled: a late cancellation would undo what it has admitted. Test:
//   `late_rollback_undoes_no_admission`. An overload is no failure, and the request is cancelled.
// - A node is gone. The others are looked at all the same, and one of them may deny the request. If none does, the failure
//   policy decides, and nothing is recorded before that. Tests: `silent_node_hides_no_denial_of_another`,
//   `denials_beside_a_silent_node_are_strikes` and `requests_beside_a_silent_node_take_no_place`.
// - A part is read before a ban is imposed or lifted, and another one after it. So the bans of each part are noted with
//   its own timestamp. Tests: `ban_outlives_an_earlier_check_of_two_nodes` and
//   `ban_lifted_beside_a_check_of_two_nodes_stays_lifted`.
// - An earlier log holds a request that will not pass, and denies another one, which is a strike if the log has a
//   penalty. So logs with one are among the last. Two of them in several slots may bring one all the same. Test:
//   `rolled_back_request_brings_no_ban`.
// - The runtime ends between two keys. The request may stay in the earlier logs for one window: too few
//   are admitted, never too many.
impl RedisStore {
    /// Asks about a check whose logs are in several slots.
    pub(super) async fn ask_in_turn(
        self,
        check: Arc<Check>,
    ) -> Result<(Sent, Outcome), StoreError> {
        let task = tokio::spawn(async move {
            let result = self.ask_parts(&check).await;
            let is_uncertain = result.as_ref().is_err_and(StoreError::may_have_counted);
            (result, Leftover(is_uncertain.then(|| (self.clone(), check))))
        });
        let (result, mut leftover) = task.await.map_err(task_has_ended)?;
        if result.as_ref().is_err_and(StoreError::is_outage) {
            // The caller decides instead.
            leftover.0 = None;
        }
        result
    }

    async fn ask_parts(&self, check: &Arc<Check>) -> Result<(Sent, Outcome), StoreError> {
        let (inner, parts) = (&*self.0, self.0.split(check));
        let before = inner.before(check, inner.health.failures(), inner.health.losses());
        let (mut denied, mut failure) = (false, None);
        // Before anything is recorded: a node that is gone may be that of a later part.
        for part in &parts {
            match self.make_good(part).await {
                Err(error) if error.is_outage() => failure = Some(StoreError::Unavailable),
                made_good => drop(made_good?),
            }
        }
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(parts.len());
        for part in &parts {
            // After a denial nothing more is recorded, but the outcome names every log that denies. Nor after a failure:
            // the failure policy may not admit the request.
            let mut only_looks = denied || failure.is_some();
            // Each part is made good once more: a loss may have been found since.
            let mut asked = self.ask(part, only_looks).await;
            if only_looks && !denied && asked.as_ref().is_ok_and(|(_, outcome)| !outcome.admitted) {
                // So the denial is a strike, and a repeated check finds its own entry.
                only_looks = false;
                asked = self.ask(part, only_looks).await;
            }
            let is_counted = outcomes.iter().any(|outcome| outcome.admitted);
            match asked {
                Ok((_, mut outcome)) => {
                    denied |= !outcome.admitted;
                    // What is only looked at has nothing that could be taken out again.
                    outcome.admitted &= !only_looks;
                    outcomes.push(outcome);
                }
                // One denial decides, also that of a later node. The outcome then has the logs of this one as unread.
                Err(error) if denied || error.is_outage() && !error.may_have_counted() => {
                    let logs = part.logs.iter().map(|log| LogOutcome::unread(&log.policy));
                    outcomes.push(Outcome::new(false, logs));
                    failure.get_or_insert(error);
                }
                Err(error) if !is_counted && !error.may_have_counted() => return Err(error),
                // Not cancelled here: what decides instead may admit it, and a late cancellation would undo that.
                Err(error) => return Err(StoreError::Uncertain { source: Box::new(error) }),
            }
        }
        let failure = failure.filter(|_| !denied);
        let is_counted = outcomes.iter().any(|outcome| outcome.admitted);
        if failure.is_some() && is_counted && is_local(check) {
            return Err(StoreError::Uncertain { source: Box::new(StoreError::Unavailable) });
        }
        // Without a decision here the request is counted nowhere either.
        if denied || failure.is_some() {
            self.take_back(&parts, &outcomes).await;
        }
        failure.map_or_else(|| Ok((before, merge(check, &parts, outcomes))), Err)
    }

    /// Cancels a request in the parts that have recorded it.
    async fn take_back(&self, parts: &[Arc<Check>], outcomes: &[Outcome]) {
        for (part, _) in parts.iter().zip(outcomes).filter(|(_, outcome)| outcome.admitted) {
            if self.0.settle(part, 0).await.is_err() {
                // If there is no room in the journal, the denial still stands: another log is full.
                let _ = self.0.journal_cancellation(part);
                self.ensure_task();
            }
            self.0.denials.forget(&part.logs);
        }
    }
}

impl Inner {
    /// Returns whether the logs of a check are in several slots of a Cluster.
    pub(super) fn is_split(&self, check: &Check) -> bool {
        self.client.is_cluster() && check.logs.iter().any(|log| log.key != check.logs[0].key)
    }

    /// Returns the parts of a check whose logs are on one server: on a Cluster those that share a slot, because they
    /// have one key.
    fn split(&self, check: &Check) -> SmallVec<[Arc<Check>; 2]> {
        let is_cluster = self.client.is_cluster();
        let together = |one: &LogId, other: &LogId| !is_cluster || one.key == other.key;
        let mut parts: SmallVec<[Arc<Check>; 2]> = SmallVec::new();
        for log in &check.logs {
            if !parts.iter().any(|part| together(&part.logs[0], log)) {
                parts.push(Arc::new(check.part(|index| together(&check.logs[index], log))));
            }
        }
        // A value can't be cancelled: it is the last to be added. Before it come those where a place that is held for a
        // round trip could bring another request a strike.
        parts.sort_by_key(|part| {
            let any = |has: fn(&LogId) -> bool| part.logs.iter().any(has);
            let has_penalty = any(|log| log.policy.get_penalty().is_some());
            (any(|log| log.policy.counts() == Counts::Distinct), has_penalty)
        });
        parts
    }

    pub(super) async fn peek(&self, check: &Arc<Check>) -> Result<Outcome, StoreError> {
        let parts = self.split(check);
        let mut outcomes = Vec::with_capacity(parts.len());
        for part in &parts {
            let mut outcome = self.check_once(part.clone(), Mode::Peek).await?;
            // Keeps `merge` from adding the cost of a cancelled request.
            outcome.admitted = true;
            outcomes.push(outcome);
        }
        let mut outcome = merge(check, &parts, outcomes);
        outcome.admitted = outcome.fits();
        Ok(outcome)
    }
}
