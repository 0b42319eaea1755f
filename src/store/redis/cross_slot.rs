//! [`CrossSlot`]: decisions about logs in several cluster slots.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::store::underlying::{CheckResult, Underlying};
use crate::store::{LogSnapshot, Restored, Store, StoreFuture};
use crate::window::{Check, Explanation, LogId, LogOutcome, Outcome, Rollback};

/// Splits a check by key. The logs of one key share a slot and are checked in one call; several
/// keys are checked one after another.
///
/// If a later key denies, the request is cancelled in the logs of the earlier keys, so that it does
/// not stay in only some of its logs. Until then the earlier logs hold a request that will not
/// pass.
///
/// # Interleavings
///
/// - Another check of an earlier log arrives before the cancellation. It may be denied because of a
///   request that does not pass: too few are admitted for the length of a round trip, never too
///   many. The outcome then has a [`Rollback`], and the [`DenyCache`](crate::store::DenyCache) of
///   this process drops the denials of all logs of the check. Test:
///   `rollback_drops_cached_denials`.
/// - A client hangs up between two keys. The calls run in a task of their own, which finishes or
///   cancels what it began. Test, on a cluster: `a_hang_up_leaves_no_trace_in_any_slot`.
/// - A node fails after a log has denied. The denial stands, and if a cancellation has failed, the
///   failover cancels the request later. Tests: `denial_stands_if_a_later_peek_fails` and
///   `denial_stands_if_its_rollback_fails`.
/// - A node fails after earlier logs have admitted. The result is [`StoreError::Uncertain`], and
///   the failover cancels or restores the request in all logs, as its failure policy demands.
/// - The runtime ends between two keys. The request may stay in the earlier logs for one window:
///   too few are admitted, never too many.
pub(super) struct CrossSlot<S>(Arc<S>);

impl<S> CrossSlot<S> {
    pub(super) fn new(store: S) -> Self {
        Self(Arc::new(store))
    }
}

struct Part {
    check: Check,
    indices: SmallVec<[usize; 2]>,
}

fn split(check: &Check) -> SmallVec<[Part; 2]> {
    let logs = &check.logs;
    let mut of_keys: SmallVec<[SmallVec<[usize; 2]>; 2]> = SmallVec::new();
    for (index, log) in logs.iter().enumerate() {
        match of_keys.iter_mut().find(|indices| logs[indices[0]].key == log.key) {
            Some(indices) => indices.push(index),
            None => of_keys.push(smallvec::smallvec![index]),
        }
    }
    let part = |indices: SmallVec<[usize; 2]>| {
        let check = check.part(|index| indices.contains(&index));
        Part { check, indices }
    };
    of_keys.into_iter().map(part).collect()
}

fn merge(check: &Check, parts: &[Part], outcomes: Vec<Outcome>) -> Outcome {
    let admitted = outcomes.iter().all(|outcome| outcome.admitted);
    // The latest: the request is not admitted before all logs have recorded it.
    let timestamp = outcomes.iter().filter_map(|outcome| outcome.timestamp).max();
    let empty = |log: &LogId| LogOutcome::empty(&log.policy);
    let mut logs: SmallVec<[LogOutcome; 1]> = check.logs.iter().map(empty).collect();
    for (part, mut outcome) in parts.iter().zip(outcomes) {
        if outcome.admitted && !admitted {
            // The state after the cancellation.
            for ((_, cost), log) in part.check.costs().zip(outcome.logs_mut()) {
                for state in log.states_mut() {
                    (state.remaining, state.wait_us) = (state.remaining + cost, 0);
                }
            }
        }
        for (index, log) in part.indices.iter().zip(outcome.logs()) {
            logs[*index] = log.clone();
        }
    }
    let mut merged = Outcome::from_logs(admitted, logs);
    merged.timestamp = timestamp;
    merged
}

async fn admit<S: Store>(store: Arc<S>, check: Check) -> Result<Outcome, StoreError> {
    let parts = split(&check);
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(parts.len());
    let mut denied = false;
    for part in &parts {
        // After a denial nothing more is recorded, but the outcome names every log that denies.
        let result = match denied {
            true => store.peek(&part.check).await,
            false => store.admit(&part.check).await,
        };
        match result {
            Ok(outcome) => {
                denied |= !outcome.admitted;
                outcomes.push(outcome);
            }
            // One denial decides. The outcome then has the logs of this node as unread.
            Err(_) if denied => {
                let logs = part.check.logs.iter().map(|log| LogOutcome::unread(&log.policy));
                outcomes.push(Outcome::new(false, logs));
            }
            Err(error) if outcomes.is_empty() => return Err(error),
            // No local decision follows that would keep what the other nodes have recorded.
            Err(error) if !error.is_outage() => {
                let recorded = parts.iter().take(outcomes.len());
                return match cancel_all(&*store, recorded).await {
                    Rollback::Unfinished => Err(StoreError::Uncertain { source: Box::new(error) }),
                    _ => Err(error),
                };
            }
            Err(error) => return Err(StoreError::Uncertain { source: Box::new(error) }),
        }
    }
    let mut rollback = Rollback::NotNeeded;
    if denied {
        let recorded = parts.iter().zip(&outcomes).take_while(|(_, outcome)| outcome.admitted);
        rollback = cancel_all(&*store, recorded.map(|(part, _)| part)).await;
    }
    let mut outcome = merge(&check, &parts, outcomes);
    outcome.rollback = rollback;
    Ok(outcome)
}

async fn cancel_all<S: Store>(store: &S, parts: impl Iterator<Item = &Part>) -> Rollback {
    let mut rollback = Rollback::NotNeeded;
    for part in parts {
        match store.cancel(&part.check).await {
            Ok(_) if rollback == Rollback::NotNeeded => rollback = Rollback::Done,
            Ok(_) => {}
            Err(_) => rollback = Rollback::Unfinished,
        }
    }
    rollback
}

impl<S: Store> Underlying for CrossSlot<S> {
    type Prepared = ();

    fn prepare(&self, _check: &Check, _now: Instant) -> Result<Outcome, ()> {
        Err(())
    }

    async fn send(&self, check: &Check, (): &(), _now: Instant) -> CheckResult {
        self.admit(check).await
    }
}

impl<S: Store> Store for CrossSlot<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        if check.logs.iter().all(|log| log.key == check.logs[0].key) {
            return self.0.admit(check);
        }
        // A task of its own: if the client hangs up, the task still finishes or cancels the
        // request.
        let task = tokio::spawn(admit(self.0.clone(), check.clone()));
        StoreFuture::later(async move {
            task.await.unwrap_or_else(|error| {
                let source = StoreError::Protocol { message: error.to_string() };
                Err(StoreError::Uncertain { source: Box::new(source) })
            })
        })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        let (store, check) = (self.0.clone(), check.clone());
        StoreFuture::later(async move {
            let parts = split(&check);
            let mut outcomes = Vec::with_capacity(parts.len());
            for part in &parts {
                let mut outcome = store.peek(&part.check).await?;
                // Keeps `merge` from adding the cost of a cancelled request.
                outcome.admitted = true;
                outcomes.push(outcome);
            }
            let mut outcome = merge(&check, &parts, outcomes);
            outcome.admitted = outcome.fits();
            Ok(outcome)
        })
    }

    /// Each log is explained by itself, so their slots do not matter.
    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        self.0.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let store = self.0.clone();
        let parts = split(check);
        StoreFuture::later(async move {
            let mut was_there = false;
            for part in &parts {
                was_there |= store.settle(&part.check, cost).await?;
            }
            Ok(was_there)
        })
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        self.0.restore(log, snapshot)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let (store, logs) = (self.0.clone(), logs.to_vec());
        StoreFuture::later(async move {
            for log in logs {
                store.reset(&[log]).await?;
            }
            Ok(())
        })
    }
}
