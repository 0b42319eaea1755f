//! [`InTurn`]: a decision about windows that no single server has.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Check, Partition, Store, StoreFuture, Verdict};
use crate::error::StoreError;
use crate::store::verdict::Rollback;
use crate::store::{BanState, KnownLog, Restored};
use crate::window::QuotaState;

/// Asks a cluster about a request: of each partition key in one call, for its windows share a slot;
/// of several keys in turn.
///
/// If a later key's windows deny, what the earlier ones have recorded is cancelled. So a request
/// is never recorded in some windows for good; but for as long as the other keys are asked, the
/// earlier windows are fuller by a request that will not pass.
pub(super) struct InTurn<S>(Arc<S>);

impl<S> InTurn<S> {
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
    for (place, partition) in check.partitions.iter().enumerate() {
        let same_key = |part: &&mut Part| part.check.partitions[0].key == partition.key;
        match parts.iter_mut().find(same_key) {
            Some(part) => {
                Arc::make_mut(&mut part.check).partitions.push(partition.clone());
                part.places.push(place);
            }
            None => {
                let mut check = Check { partitions: SmallVec::new(), ..check.clone() };
                check.partitions.push(partition.clone());
                let check = Arc::new(check);
                parts.push(Part { check, places: smallvec::smallvec![place] });
            }
        }
    }
    parts
}

/// Puts the answers about the parts together, in the order of the request's windows.
fn together(check: &Check, parts: &[Part], mut verdicts: Vec<Verdict>) -> Verdict {
    let admitted = verdicts.iter().all(|verdict| verdict.admitted);
    let mut by_place: Vec<SmallVec<[QuotaState; 2]>> =
        vec![SmallVec::new(); check.partitions.len()];
    for (part, verdict) in parts.iter().zip(&mut verdicts) {
        if verdict.admitted && !admitted {
            // As they are again, now that the request has been taken back.
            for state in &mut verdict.states {
                (state.remaining, state.wait_us) = (state.remaining + check.cost, 0);
            }
        }
        let mut states = &verdict.states[..];
        for place in &part.places {
            let (own, rest) = states.split_at(check.partitions[*place].policy.judged().len());
            by_place[*place] = SmallVec::from(own);
            states = rest;
        }
    }
    // The newest, for the request is not admitted before all windows have recorded it.
    let at_us = verdicts.iter().filter_map(|verdict| verdict.at_us).max();
    let mut whole = Verdict::new(admitted, at_us, by_place.into_iter().flatten().collect());
    for (part, verdict) in parts.iter().zip(&verdicts) {
        let of_whole = |ban: &BanState| BanState { partition: part.places[ban.partition], ..*ban };
        whole.bans.extend(verdict.bans.iter().map(of_whole));
    }
    whole
}

async fn admit<S: Store>(store: Arc<S>, check: Arc<Check>) -> Result<Verdict, StoreError> {
    let parts = parts(&check);
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(parts.len());
    let mut denied = false;
    for part in &parts {
        // After a denial nothing more is recorded, but the answer is to name all that deny.
        let answer = match denied {
            true => store.peek(&part.check).await,
            false => store.admit(&part.check).await,
        };
        match answer {
            Ok(verdict) => {
                denied |= !verdict.admitted;
                verdicts.push(verdict);
            }
            // One denial decides. The answer then does not say how the other logs stand.
            Err(_) if denied => verdicts.push(unknown(&part.check)),
            Err(error) if verdicts.is_empty() => return Err(error),
            // The caller has the request cancelled or restored in all logs.
            Err(error) => return Err(StoreError::Uncertain { source: Box::new(error) }),
        }
    }
    let mut rollback = Rollback::NotNeeded;
    if denied {
        let recorded = parts.iter().zip(&verdicts).take_while(|(_, verdict)| verdict.admitted);
        for (part, _) in recorded {
            match store.cancel(&part.check).await {
                Ok(_) if rollback == Rollback::NotNeeded => rollback = Rollback::Done,
                Ok(_) => {}
                Err(_) => rollback = Rollback::Unfinished,
            }
        }
    }
    let verdict = together(&check, &parts, verdicts);
    Ok(Verdict { rollback, ..verdict })
}

/// Answers about logs that could not be asked, and that do not matter to a decision.
fn unknown(check: &Check) -> Verdict {
    let judged = check.partitions.iter().flat_map(|partition| partition.policy.judged());
    let states = judged.map(|quota| QuotaState::new(quota.limit(), 0, 0)).collect();
    Verdict::new(false, None, states)
}

impl<S: Store> Store for InTurn<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        if check.partitions.iter().all(|partition| partition.key == check.partitions[0].key) {
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

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        let (store, check) = (self.0.clone(), check.clone());
        StoreFuture::later(async move {
            let parts = parts(&check);
            let mut verdicts = Vec::with_capacity(parts.len());
            for part in &parts {
                let mut verdict = store.peek(&part.check).await?;
                // Nothing was recorded that would have to be taken back.
                verdict.admitted = true;
                verdicts.push(verdict);
            }
            let mut verdict = together(&check, &parts, verdicts);
            let banned = verdict.bans.iter().any(|ban| ban.wait_us > 0);
            verdict.admitted = check.fits(&verdict.states) && !banned;
            Ok(verdict)
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

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        self.0.restore(log, known)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let (store, partitions) = (self.0.clone(), partitions.to_vec());
        StoreFuture::later(async move {
            for partition in partitions {
                store.reset(&[partition]).await?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
