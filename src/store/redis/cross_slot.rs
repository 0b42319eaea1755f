//! [`CrossSlot`]: a decision about logs in several cluster slots.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::StoreError;
use crate::store::{LogSnapshot, Restored, Store, StoreFuture};
use crate::window::{Check, LogId, LogOutcome, Outcome, Rollback};

/// Asks a cluster about a request: of each log key in one call, for its windows share a slot;
/// of several keys in turn.
///
/// If a later key's windows deny, what the earlier ones have recorded is cancelled. So a request
/// is never recorded in some windows for good; but for as long as the other keys are asked, the
/// earlier windows are fuller by a request that will not pass.
pub(super) struct CrossSlot<S>(Arc<S>);

impl<S> CrossSlot<S> {
    pub(super) fn new(store: S) -> Self {
        Self(Arc::new(store))
    }
}

/// The windows of a request that have one key, and which of the request's windows they are.
struct Part {
    check: Arc<Check>,
    places: SmallVec<[usize; 2]>,
}

fn parts(check: &Check) -> SmallVec<[Part; 2]> {
    let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
    for (place, log) in check.logs.iter().enumerate() {
        let same_key = |part: &&mut Part| part.check.logs[0].key == log.key;
        match parts.iter_mut().find(same_key) {
            Some(part) => {
                Arc::make_mut(&mut part.check).logs.push(log.clone());
                part.places.push(place);
            }
            None => {
                let mut check = Check { logs: SmallVec::new(), ..check.clone() };
                check.logs.push(log.clone());
                let check = Arc::new(check);
                parts.push(Part { check, places: smallvec::smallvec![place] });
            }
        }
    }
    parts
}

/// Merges the outcomes of the parts, in the order of the request's logs.
fn merge(check: &Check, parts: &[Part], outcomes: Vec<Outcome>) -> Outcome {
    let admitted = outcomes.iter().all(|outcome| outcome.admitted);
    // The newest, for the request is not admitted before all logs have recorded it.
    let timestamp = outcomes.iter().filter_map(|outcome| outcome.timestamp).max();
    let empty = |log: &LogId| LogOutcome::empty(&log.policy);
    let mut logs: SmallVec<[LogOutcome; 1]> = check.logs.iter().map(empty).collect();
    for (part, mut outcome) in parts.iter().zip(outcomes) {
        if outcome.admitted && !admitted {
            // As they are again, now that the request has been removed.
            for state in outcome.logs_mut().iter_mut().flat_map(LogOutcome::states_mut) {
                (state.remaining, state.wait_us) = (state.remaining + check.cost, 0);
            }
        }
        for (place, log) in part.places.iter().zip(outcome.logs()) {
            logs[*place] = log.clone();
        }
    }
    let mut merged = Outcome::new(admitted, logs);
    merged.timestamp = timestamp;
    merged
}

async fn admit<S: Store>(store: Arc<S>, check: Arc<Check>) -> Result<Outcome, StoreError> {
    let parts = parts(&check);
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(parts.len());
    let mut denied = false;
    for part in &parts {
        // After a denial nothing more is recorded, but the answer is to name all that deny.
        let answer = match denied {
            true => store.peek(&part.check).await,
            false => store.admit(&part.check).await,
        };
        match answer {
            Ok(outcome) => {
                denied |= !outcome.admitted;
                outcomes.push(outcome);
            }
            // One denial decides. The answer then does not say how the other logs stand.
            Err(_) if denied => outcomes.push(unknown(&part.check)),
            Err(error) if outcomes.is_empty() => return Err(error),
            // The caller has the request cancelled or restored in all logs.
            Err(error) => return Err(StoreError::Uncertain { source: Box::new(error) }),
        }
    }
    let mut rollback = Rollback::NotNeeded;
    if denied {
        let recorded = parts.iter().zip(&outcomes).take_while(|(_, outcome)| outcome.admitted);
        for (part, _) in recorded {
            match store.cancel(&part.check).await {
                Ok(_) if rollback == Rollback::NotNeeded => rollback = Rollback::Done,
                Ok(_) => {}
                Err(_) => rollback = Rollback::Unfinished,
            }
        }
    }
    let mut outcome = merge(&check, &parts, outcomes);
    outcome.rollback = rollback;
    Ok(outcome)
}

/// Returns the outcome of logs whose node does not answer, and that do not matter to a decision.
fn unknown(check: &Check) -> Outcome {
    Outcome::new(false, check.logs.iter().map(|log| LogOutcome::empty(&log.policy)))
}

impl<S: Store> Store for CrossSlot<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        if check.logs.iter().all(|log| log.key == check.logs[0].key) {
            return self.0.admit(check);
        }
        // In a task of its own: if the client goes away in between, what was begun is finished.
        let task = tokio::spawn(admit(self.0.clone(), check.clone()));
        StoreFuture::later(async move {
            let failed = |error: tokio::task::JoinError| StoreError::Uncertain {
                source: Box::new(StoreError::Protocol { message: error.to_string() }),
            };
            task.await.unwrap_or_else(|error| Err(failed(error)))
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let (store, check) = (self.0.clone(), check.clone());
        StoreFuture::later(async move {
            let parts = parts(&check);
            let mut outcomes = Vec::with_capacity(parts.len());
            for part in &parts {
                let mut outcome = store.peek(&part.check).await?;
                // Nothing was recorded that would have to be taken back.
                outcome.admitted = true;
                outcomes.push(outcome);
            }
            let mut outcome = merge(&check, &parts, outcomes);
            outcome.admitted = outcome.fits();
            Ok(outcome)
        })
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let store = self.0.clone();
        let parts = parts(check);
        StoreFuture::later(async move {
            let mut was_there = false;
            for part in &parts {
                was_there |= store.cancel(&part.check).await?;
            }
            Ok(was_there)
        })
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        self.0.restore(log, known)
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

#[cfg(test)]
mod tests;
