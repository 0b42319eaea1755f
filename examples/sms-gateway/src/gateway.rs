//! [`Gateway`]: what becomes of a message.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_sliding_window::{
    Admitted, DecidedBy, Decision, Denied, Limiter, PolicyHandle, StoreError,
};
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::controller::Results;
use crate::downstream::Downstream;
use crate::hold::{Ended, Gate, Hold};
use crate::levels::{Levels, Limit, Limits};
use crate::message::Message;
use crate::refusals::{Refusals, Refuser};
use crate::thresholds::{Level, List};
use example_support::logs::Throttle;

/// The way of a message: all levels in one decision, then the bucket, then the downstream.
///
/// The token is taken when the levels have admitted the message, so that one that they refuse takes none:
/// an institution that sends more than its quota empties no bucket for the others.
pub(crate) struct Gateway {
    /// Its own policy is not used: each check names the policies of the levels.
    pub(crate) limiter: Limiter,
    pub(crate) bucket: Bucket,
    pub(crate) levels: Arc<Levels>,
    pub(crate) hold: Hold,
    pub(crate) refusals: Refusals,
    pub(crate) downstream: Downstream,
    pub(crate) results: Results,
}

/// Why a message is not sent.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The list does not have the name.
    Unknown(List),
    /// No more than so many parts fit, whenever the message is sent.
    TooLong { refuser: Refuser, most: u32 },
    /// No more parts fit as long as the controller lowers the thresholds.
    Lowered,
    /// The bucket is empty, for so long.
    Global(Duration),
    /// Windows of these levels are full.
    Levels(Denied),
    /// Too many messages wait for this receiver, or of this institution.
    Hold(Duration),
    /// The message has waited, and the server stops.
    Stopping,
    /// The store does not answer.
    Store(StoreError),
    /// The downstream had the message and failed. It is counted.
    Downstream,
}

impl Gateway {
    /// Sends a message, or refuses it. One that the downstream never had leaves no trace in any window.
    ///
    /// A message that has begun its way goes it to the end, even if the caller no longer waits: one
    /// that waits for room is sent when there is some, and one that is admitted is handed over.
    pub(crate) async fn send(self: &Arc<Self>, message: Message) -> Result<Uuid, Refusal> {
        let gateway = self.clone();
        let sent = tokio::spawn(async move { gateway.decide_and_send(message).await });
        // Only a panic, or the end of the program, ends the task early.
        sent.await.unwrap_or(Err(Refusal::Downstream))
    }

    async fn decide_and_send(&self, message: Message) -> Result<Uuid, Refusal> {
        let admitted = self.admit_or_hold(&message).await;
        self.refusals.count(&message.institution, &refused_by(&admitted), |name| {
            self.levels.has(List::Institutions, name)
        });
        self.hand_over(&message, &admitted?).await
    }

    /// Admits a message, or lets it wait until it can be admitted.
    async fn admit_or_hold(&self, message: &Message) -> Result<Admitted, Refusal> {
        let bound = self.hold.bound();
        if bound.is_zero() {
            return self.admit(message).await;
        }
        // What can never be sent does not wait.
        self.limits(message)?;
        let until = Instant::now() + bound;
        let join = || {
            let institutions = self.levels.count(List::Institutions);
            let longest = self.levels.most_for_a_receiver(bound);
            self.hold.join(message, institutions, longest)
        };
        let mut turn = None;
        if self.hold.holds_up(message) {
            let turn = turn.insert(join().ok_or(Refusal::Hold(bound))?);
            turn.wait(None, Instant::now(), until).await.map_err(|ended| match ended {
                Ended::Late => Refusal::Hold(bound),
                Ended::Stopping => Refusal::Stopping,
            })?;
        }
        loop {
            let denied = match self.admit(message).await {
                Err(Refusal::Levels(denied)) => denied,
                decided => return decided,
            };
            let again = Instant::now() + denied.retry_after();
            if again > until {
                return Err(Refusal::Levels(denied));
            }
            if turn.is_none() {
                turn = join();
            }
            let Some(turn) = &mut turn else { return Err(Refusal::Levels(denied)) };
            match turn.wait(self.gate(message, &denied), again, until).await {
                Ok(()) => {}
                Err(Ended::Late) => return Err(Refusal::Levels(denied)),
                Err(Ended::Stopping) => return Err(Refusal::Stopping),
            }
        }
    }

    /// Returns what a message is held to, unless it can't be sent at all.
    fn limits(&self, message: &Message) -> Result<Limits, Refusal> {
        let limits = self.levels.limits(message).map_err(Refusal::Unknown)?;
        let has_room = |(limit, _): &(Limit, String)| {
            limit.policy.get().quotas().iter().all(|quota| message.parts <= quota.limit())
        };
        if !limits.iter().all(has_room) {
            return Err(too_long(&limits, message.parts));
        }
        let most = self.bucket.quota().limit();
        let fits = message.parts <= most;
        if fits { Ok(limits) } else { Err(Refusal::TooLong { refuser: Refuser::Global, most }) }
    }

    /// Returns what holds a message up, if its receiver does not: rather a limit of its institution alone
    /// than one that others wait for too.
    fn gate(&self, message: &Message, denied: &Denied) -> Option<Gate> {
        let mut limits = self.levels.limits(message).ok()?;
        limits.retain(|(limit, _)| denied.violated().any(|name| name == limit.name));
        let is_receiver = |(limit, _): &(Limit, String)| limit.name == Level::Receiver.name();
        let is_common = |(limit, _): &(Limit, String)| {
            limit.level != Level::Institution && limit.name == limit.level.name()
        };
        if limits.iter().any(is_receiver) {
            return None;
        }
        limits.into_iter().min_by_key(is_common).map(|(limit, key)| (limit.name, key))
    }

    /// Decides on a message: its levels, and then the bucket.
    async fn admit(&self, message: &Message) -> Result<Admitted, Refusal> {
        let limits = self.limits(message)?;
        let logs: Vec<(&PolicyHandle, &str)> =
            limits.iter().map(|(limit, key)| (&limit.policy, key.as_str())).collect();
        let decision = self.limiter.check_all_cost(logs, message.parts).await;
        if is_without_store(&decision) {
            self.hold.store_failed();
        }
        let admitted = match decision {
            Ok(Decision::Admitted(admitted)) => admitted,
            Ok(Decision::Denied(denied)) => return Err(Refusal::Levels(denied)),
            // A threshold was lowered meanwhile.
            Err(StoreError::CostAboveLimit { .. }) => return Err(too_long(&limits, message.parts)),
            Err(error) => return Err(Refusal::Store(error)),
        };
        // An institution that was removed meanwhile still sends this message.
        let Some(portion) = self.levels.portion(&message.institution) else { return Ok(admitted) };
        let token = self.bucket.take(&message.institution, portion, message.parts);
        let Err(wait) = token else { return Ok(admitted) };
        self.give_back(&admitted).await;
        Err(Refusal::Global(wait))
    }

    /// Hands an admitted message to the downstream. It stays counted even if that fails: the downstream
    /// had it, so it may have reached the receiver, and it was work for who suffers already.
    async fn hand_over(&self, message: &Message, admitted: &Admitted) -> Result<Uuid, Refusal> {
        let begun = Instant::now();
        let taken = self.downstream.send(message).await;
        self.results.add(begun.elapsed(), !taken);
        if taken { Ok(admitted.id()) } else { Err(Refusal::Downstream) }
    }

    /// Gives the places of a message back that the downstream never had.
    async fn give_back(&self, admitted: &Admitted) {
        static STAYS: Throttle = Throttle::new();
        if let Err(error) = self.limiter.cancel(admitted).await {
            STAYS.log(move |times| {
                tracing::warn!(%error, times, "a message that was not sent stays counted");
            });
        }
    }
}

/// Tells whether the failure policy has let a message pass or refused it.
fn is_without_store(decision: &Result<Decision, StoreError>) -> bool {
    match decision {
        Ok(decision) => decision.is_admitted() && decision.decided_by() != DecidedBy::Store,
        Err(error) => !matches!(error, StoreError::CostAboveLimit { .. }),
    }
}

/// Says which limit has fewer places than a message has parts.
fn too_long(limits: &Limits, parts: u32) -> Refusal {
    match limits.iter().find(|(limit, _)| parts > limit.most) {
        Some((Limit { level, most, .. }, _)) => {
            Refusal::TooLong { refuser: Refuser::Level(*level), most: *most }
        }
        None => Refusal::Lowered,
    }
}

/// Returns what has decided on a message, each with whether it has refused it.
fn refused_by(admitted: &Result<Admitted, Refusal>) -> Vec<(Refuser, bool)> {
    let levels = |denied: Option<&Denied>| {
        let has_denied = |level: Level| denied.is_some_and(|denied| level.has_denied(denied));
        Level::ALL.map(|level| (Refuser::Level(level), has_denied(level))).to_vec()
    };
    let with = |refuser, refused| [levels(None), vec![(refuser, refused)]].concat();
    match admitted {
        Ok(_) => with(Refuser::Global, false),
        Err(Refusal::Levels(denied)) => levels(Some(denied)),
        Err(Refusal::Global(_)) => with(Refuser::Global, true),
        Err(Refusal::Hold(_)) => vec![(Refuser::Hold, true)],
        Err(_) => Vec::new(),
    }
}
