//! [`Gateway`]: what becomes of a message.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_sliding_window::{Admitted, Decision, Denied, Key, Limiter, StoreError};
use uuid::Uuid;

use crate::alerts::Alerts;
use crate::bucket::Bucket;
use crate::controller::Results;
use crate::downstream::Downstream;
use crate::levels::Levels;
use crate::message::Message;

/// The way of a message: all levels in one decision, then the bucket, then the downstream.
///
/// The levels come first, so that a message that they refuse takes no token: an institution that sends
/// more than its quota empties no bucket for the others.
pub(crate) struct Gateway {
    /// Its own policy is not used: each check names the policies of the levels.
    pub(crate) limiter: Limiter,
    pub(crate) bucket: Bucket,
    pub(crate) levels: Arc<Levels>,
    pub(crate) alerts: Alerts,
    pub(crate) downstream: Downstream,
    pub(crate) results: Results,
}

/// Why a message is not sent.
#[derive(Debug)]
pub(crate) enum Refusal {
    UnknownInstitution,
    /// The bucket is empty, for so long.
    Global(Duration),
    /// Windows of these levels are full.
    Levels(Box<Denied>),
    /// The store does not answer.
    Store(StoreError),
    /// The downstream did not take the message. It is not counted.
    Downstream,
}

impl Gateway {
    /// Sends a message, or refuses it and leaves no trace of it in any window.
    ///
    /// A message that has begun its way goes it to the end, even if the caller no longer waits: one
    /// that is admitted is handed over, and one that is not taken gives its places back.
    pub(crate) async fn send(self: &Arc<Self>, message: Message) -> Result<Uuid, Refusal> {
        let gateway = self.clone();
        let sent = tokio::spawn(async move { gateway.decide_and_send(message).await });
        // Only a panic, or the end of the program, ends the task early.
        sent.await.unwrap_or(Err(Refusal::Downstream))
    }

    async fn decide_and_send(&self, message: Message) -> Result<Uuid, Refusal> {
        let policies = self.levels.policies(&message.institution);
        let [institution, channel, receiver] = policies.ok_or(Refusal::UnknownInstitution)?;
        let keys = [
            (institution, Key::from(message.institution.as_str())),
            (channel, Key::from(message.channel.as_str())),
            (receiver, Key::from(message.to.as_str())),
        ];
        let decision = self.limiter.check_all(keys).await.map_err(Refusal::Store)?;
        let refused_by: Vec<&str> =
            decision.denied().into_iter().flat_map(Denied::violated).collect();
        self.alerts.levels(&refused_by);
        let admitted = match decision {
            Decision::Admitted(admitted) => admitted,
            Decision::Denied(denied) => return Err(Refusal::Levels(Box::new(denied))),
        };
        let token = self.bucket.take();
        self.alerts.global(token.is_err());
        if let Err(wait) = token {
            self.give_back(&admitted).await;
            return Err(Refusal::Global(wait));
        }
        self.hand_over(&message, &admitted).await
    }

    /// Hands an admitted message to the downstream; one that is not taken gives its places back.
    async fn hand_over(&self, message: &Message, admitted: &Admitted) -> Result<Uuid, Refusal> {
        let asked = Instant::now();
        let taken = self.downstream.send(message).await;
        self.results.add(asked.elapsed(), !taken);
        if taken {
            return Ok(admitted.id());
        }
        self.give_back(admitted).await;
        Err(Refusal::Downstream)
    }

    /// Gives the places of a message back that is not sent.
    async fn give_back(&self, admitted: &Admitted) {
        if let Err(error) = self.limiter.cancel(admitted).await {
            tracing::warn!(%error, "a message that was not sent stays counted");
        }
    }
}
