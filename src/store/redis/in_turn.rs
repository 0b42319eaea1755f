//! [`InTurn`]: a decision about windows that no single server has.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Check, Partition, Store, StoreFuture, Verdict};
use crate::error::StoreError;
use crate::store::BanState;
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
            Err(error) if verdicts.is_empty() => return Err(error),
            // Whoever asked has the request cancelled or restored in all windows.
            Err(error) => return Err(StoreError::Partial { source: Box::new(error) }),
        }
    }
    if denied {
        for (part, verdict) in parts.iter().zip(&verdicts) {
            if !verdict.admitted {
                break;
            }
            let cancelled = store.cancel(&part.check).await;
            cancelled.map_err(|error| StoreError::Partial { source: Box::new(error) })?;
        }
    }
    Ok(together(&check, &parts, verdicts))
}

impl<S: Store> Store for InTurn<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        if check.partitions.iter().all(|partition| partition.key == check.partitions[0].key) {
            return self.0.admit(check);
        }
        // In a task of its own: if the client goes away in between, what was begun is finished.
        let task = tokio::spawn(admit(self.0.clone(), check.clone()));
        StoreFuture::later(async move {
            let failed = |error: tokio::task::JoinError| StoreError::Partial {
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

    fn restore(&self, check: &Arc<Check>, age: Duration) -> StoreFuture<()> {
        let store = self.0.clone();
        let parts = parts(check);
        StoreFuture::later(async move {
            for part in &parts {
                store.restore(&part.check, age).await?;
            }
            Ok(())
        })
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
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::quota::Quota;
    use crate::store::Struck;

    #[test]
    fn a_ban_stays_with_its_window_when_the_parts_are_put_together() {
        let policy = |name| Arc::new(Policy::new(name).quota(Quota::per_minute(5)));
        let partition = |name, key: &str| Partition { policy: policy(name), key: key.into() };
        let check = Check::new([partition("ip", "::1"), partition("user", "mallory")]);
        let parts = parts(&check);
        let states = || smallvec::smallvec![QuotaState::new(5, 0, 0)];
        let mut banned = Verdict::new(false, None, states());
        banned.bans.push(BanState::new(0, 9, Struck::No));
        let whole = together(&check, &parts, vec![Verdict::new(true, None, states()), banned]);
        assert_eq!(whole.bans[..], [BanState::new(1, 9, Struck::No)]);
    }
}
