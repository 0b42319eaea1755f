//! Checks of several keys on a Cluster, one key after the other.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::{RedisStore, Store, share};
use crate::error::StoreError;
use crate::policy::Counts;
use crate::window::{Check, DecidedBy, LogId, LogOutcome, Outcome};

/// Puts together what the parts of a check have come to.
fn merge(
    check: &Check,
    parts: &[Arc<Check>],
    mut outcomes: Vec<Outcome>,
    decided_by: DecidedBy,
) -> Outcome {
    let admitted = outcomes.iter().all(|outcome| outcome.admitted);
    let of_parts = parts.iter().zip(&mut outcomes);
    for (part, outcome) in of_parts.filter(|(_, outcome)| outcome.admitted && !admitted) {
        // It was cancelled there.
        outcome.settle(part, 0, |_| true);
    }
    let outcome_of = |log: &LogId| {
        let of_parts = parts.iter().zip(&outcomes);
        let mut all = of_parts.flat_map(|(part, outcome)| part.logs.iter().zip(outcome.logs()));
        all.find(|(other, _)| *other == log).map(|(_, outcome)| outcome.clone())
    };
    let mut merged = Outcome::new(admitted, check.logs.iter().filter_map(outcome_of));
    // The latest: the request is not admitted before all logs have recorded it.
    merged.timestamp = outcomes.iter().filter_map(|outcome| outcome.timestamp).max();
    merged.decided_by = decided_by;
    merged
}

// The keys are asked one after the other, each as a check of its own: Redis decides about it, or if its node is gone the
// failure policy. If a later key denies, the request is cancelled in the logs of the earlier keys, so that it does not
// stay in only some of its logs. Until then the earlier logs hold a request that will not pass.
//
// # Interleavings
//
// - Another check of an earlier log arrives before the cancellation. It may be denied because of a request
//   that does not pass: too few are admitted for the length of a round trip, never too many. Then the
//   denials of the earlier logs are forgotten. That of the later one is true. Tests:
//   `denial_stands_and_its_request_is_rolled_back` and `denial_beside_another_rule_is_remembered`.
// - Two requests for the same keys each have a place that the other one needs. All processes that have the same policies ask
//   in one order, so that one of them comes first. Test: `rollback_waits_for_no_later_node`.
// - Two logs of distinct values are in several slots, and the later one denies. The value stays in the earlier
//   one until it has left the window, as if it was seen.
// - A client hangs up between two keys. The calls run in a task of their own, which finishes what it began, as on one server.
//   So does a cancellation or settlement. Test: `request_is_admitted_when_its_last_log_has_it_and_cancelled_in_each`.
// - A node fails after a log has denied. The denial stands, and if a cancellation has failed, the request
//   is cancelled later. Tests: `rollback_waits_for_no_later_node` and `denial_stands_and_its_request_is_rolled_back`.
// - Nodes are gone, or one fails. With `Local` their keys are decided here, under the identity of the request, and the others
//   by their nodes. What these deny was not admitted here before: it would deny others until it is taken back. Otherwise the
//   others are only looked at, for one of them may deny, and nothing is recorded for a request that the policy decides about.
//   Tests: `failing_node_hides_no_denial_of_another`, `late_rollback_undoes_no_admission`,
//   `requests_beside_a_silent_node_take_no_place` and `denials_beside_a_silent_node_are_strikes_of_their_own_keys`.
// - A node that was looked at denies, and is asked, so that this is a strike. Meanwhile a place has come free there. The request
//   is cancelled, and if its reply is lost, the denial stands. Test: `request_that_was_looked_at_keeps_no_place`.
// - A part is read before a ban is imposed or lifted, and another one after it. So the bans of each part are noted with
//   the instant at which it was sent. Tests: `ban_outlives_an_earlier_check_of_two_nodes` and
//   `ban_lifted_beside_a_check_of_two_nodes_stays_lifted`.
// - An earlier log holds a request that will not pass, and denies another one, which is a strike if the log has a
//   penalty. So logs with one are among the last. Two of them in several slots may bring one all the same. Test:
//   `request_that_another_node_denies_leaves_no_value_and_brings_no_ban`.
// - The runtime ends between two keys. The request may stay in the earlier logs for one window: too few
//   are admitted, never too many.
impl RedisStore {
    /// Decides on a check whose logs are in several slots.
    pub(super) async fn decide_in_turn(self, check: Arc<Check>) -> Result<Outcome, StoreError> {
        let mut has_node = SmallVec::<[bool; 2]>::new();
        for log in &check.logs {
            has_node.push(self.0.client.connected(std::slice::from_ref(log)).await.is_ok());
        }
        let mut parts = self.split(&check.part(|index| has_node[index]));
        let gone = Arc::new(check.part(|index| !has_node[index]));
        if !gone.logs.is_empty() {
            let look = |share: Cow<'_, Check>| self.0.local.decide(&share, false);
            let looked = share(&gone, &StoreError::Unavailable).and_then(look);
            // What is denied here takes no place elsewhere, and what a node denies takes none here.
            let at = if looked.is_ok_and(|outcome| outcome.admitted) { parts.len() } else { 0 };
            parts.insert(at, gone.clone());
        }
        let (mut denied_by, mut failure, mut is_local) = (None, None, false);
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            // After a denial nothing more is recorded, but the outcome names every log that denies.
            let only_looks = denied_by.is_some() || failure.is_some();
            let is_gone = Arc::ptr_eq(part, &gone);
            let decided = if only_looks && is_gone || denied_by == Some(DecidedBy::LocalLog) {
                Err(StoreError::Unavailable)
            } else if is_gone {
                self.decide_without_redis(part, StoreError::Unavailable)
            } else if denied_by.is_some() {
                self.peek_on_one_server(part).await
            } else if only_looks {
                self.look_for_denial(part).await
            } else {
                self.decide_on_one_server(part.clone()).await
            };
            if !only_looks && !decided.as_ref().is_ok_and(|outcome| outcome.admitted) {
                let _ = decided.as_ref().inspect_err(|error| self.cancel_if_counted(part, error));
                // At once, for a node may be slow. What fails is made later. If there is no room in the journal, a denial
                // still stands.
                let settled = parts[..index].iter().map(|part| self.settle(part, 0));
                settled.collect::<JoinSet<_>>().join_all().await;
            }
            match decided {
                Ok(mut outcome) => {
                    is_local |= outcome.decided_by == DecidedBy::LocalLog;
                    if !outcome.admitted {
                        denied_by.get_or_insert(outcome.decided_by);
                    }
                    // What is only looked at has nothing that could be taken out again.
                    outcome.admitted &= !only_looks;
                    outcomes.push(outcome);
                }
                // One denial decides, also that of a later node. The outcome then has the logs of this one as unread.
                Err(error) if denied_by.is_some() || error.is_outage() => {
                    let unread = part.logs.iter().map(|log| LogOutcome::unread(&log.policy));
                    outcomes.push(Outcome::new(false, unread));
                    failure.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let decided_by = if is_local { DecidedBy::LocalLog } else { DecidedBy::Store };
        match failure {
            Some(error) if denied_by.is_none() => Err(error),
            _ => Ok(merge(&check, &parts, outcomes, denied_by.unwrap_or(decided_by))),
        }
    }

    /// Looks at a part of a request on which the failure policy decides, unless it is denied here. Then Redis is asked, so
    /// that the denial is a strike and is remembered.
    async fn look_for_denial(&self, part: &Arc<Check>) -> Result<Outcome, StoreError> {
        let looked = self.peek_on_one_server(part).await?;
        if looked.admitted {
            return Ok(looked);
        }
        let asked = self.decide_on_one_server(part.clone()).await;
        match &asked {
            Ok(outcome) if outcome.admitted => drop(self.settle(part, 0).await),
            Ok(_) => {}
            Err(error) => self.cancel_if_counted(part, error),
        }
        asked.or(Ok(looked))
    }

    /// Looks at a check, at one part after the other.
    pub(super) async fn peek_in_turn(self, check: Arc<Check>) -> Result<Outcome, StoreError> {
        self.0.client.watch_data();
        let parts = self.split(&check);
        let (mut outcomes, mut decided_by) = (Vec::with_capacity(parts.len()), DecidedBy::Store);
        for part in &parts {
            let mut outcome = match self.peek_on_one_server(part).await {
                Err(error) if error.is_outage() => {
                    decided_by = DecidedBy::LocalLog;
                    self.0.local.decide(&*share(part, &error)?, false)?
                }
                looked => looked?,
            };
            // Keeps `merge` from adding the cost of a cancelled request.
            outcome.admitted = true;
            outcomes.push(outcome);
        }
        let mut outcome = merge(&check, &parts, outcomes, decided_by);
        outcome.admitted = outcome.fits();
        Ok(outcome)
    }
}

impl RedisStore {
    /// Returns whether the logs of a check are in several slots of a Cluster.
    pub(super) fn is_split(&self, check: &Check) -> bool {
        self.0.client.is_cluster() && check.logs.iter().any(|log| log.key != check.logs[0].key)
    }

    /// Returns the parts of a check whose logs are on one server: on a Cluster those that share a slot, because they
    /// have one key.
    fn split(&self, check: &Check) -> SmallVec<[Arc<Check>; 2]> {
        let is_cluster = self.0.client.is_cluster();
        let together = |one: &LogId, other: &LogId| !is_cluster || one.key == other.key;
        let mut parts: SmallVec<[Arc<Check>; 2]> = SmallVec::new();
        for log in &check.logs {
            if !parts.iter().any(|part| together(&part.logs[0], log)) {
                parts.push(Arc::new(check.part(|index| together(&check.logs[index], log))));
            }
        }
        // A value can't be cancelled: it is the last to be added. Before it come those where a place that is held for a
        // round trip could bring another request a strike.
        parts.sort_by(|one, other| {
            let any = |part: &Check, has: fn(&LogId) -> bool| part.logs.iter().any(has);
            let order = |part: &Check| {
                let is_distinct = any(part, |log| log.policy.counts() == Counts::Distinct);
                (is_distinct, any(part, |log| log.policy.get_penalty().is_some()))
            };
            order(one).cmp(&order(other)).then_with(|| one.logs[0].key.cmp(&other.logs[0].key))
        });
        parts
    }
}
