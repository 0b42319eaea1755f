//! [`Gateway`]: what becomes of a message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use example_support::lock;
use example_support::logs::Throttle;
use example_support::policies::SharedPolicies;
use example_support::problem::{Problem, insert_retry_after};
use tokio::sync::watch;
use tower_sliding_window::{Admitted, Denied, Limiter, Rejection, StoreError, WaitError};
use uuid::Uuid;

use crate::alerts::Refusals;
use crate::args::Hold;
use crate::bucket::Bucket;
use crate::downstream::Downstream;
use crate::levels::{Levels, Limit, Unknown};
use crate::message::Message;

/// When to try again what the downstream, or Redis, did not take.
const SOON: Duration = Duration::from_secs(1);
/// When to try again what does not fit while thresholds are lowered, which takes a while to pass.
const A_WHILE: Duration = Duration::from_secs(10);

/// The way of a message: all levels in one decision, then the bucket, then the downstream.
///
/// The token is taken when the levels have admitted the message, so that one that they refuse takes none:
/// an institution that sends more than its limit empties no bucket for the others.
pub(crate) struct Gateway {
    /// Its own policy is not used: each check names the policies of the levels.
    pub(crate) limiter: Limiter,
    pub(crate) policies: SharedPolicies<Levels>,
    pub(crate) bucket: Bucket,
    pub(crate) downstream: Downstream,
    pub(crate) refusals: Refusals,
    pub(crate) hold: Hold,
    /// Of each institution, a clone for each message that waits or is being decided on.
    pub(crate) places: Mutex<BTreeMap<String, Arc<()>>>,
    /// Becomes true when the server is asked to stop. Then no message waits any longer.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Why a message is not sent.
#[derive(Debug)]
pub(crate) enum Refusal {
    Unknown(Unknown),
    /// No more than so many parts fit, whenever the message is sent.
    TooLong {
        level: &'static str,
        most: u32,
        parts: u32,
    },
    /// No more parts fit as long as the controller lowers the thresholds.
    Lowered,
    /// Windows of these levels are full.
    Levels(Denied),
    /// The bucket is empty, for so long.
    Global(Duration),
    /// As many messages wait as may wait.
    TooManyWait,
    /// The message has waited, and the server stops.
    Stopping,
    Store(StoreError),
    /// The downstream had the message and failed. It is counted.
    Downstream,
}

impl Gateway {
    /// Sends a message, or refuses it. One that the downstream never had leaves no trace in any window.
    ///
    /// A message goes its way to the end even if the caller no longer waits.
    pub(crate) async fn send(self: &Arc<Self>, message: Message) -> Result<Uuid, Refusal> {
        let gateway = self.clone();
        let sent = tokio::spawn(async move {
            let admitted = gateway.admit(&message).await;
            let (refusals, institution) = (&gateway.refusals, &message.institution);
            match &admitted {
                Ok(_) => refusals.count(institution, &[]),
                Err(Refusal::Levels(denied)) => {
                    refusals.count(institution, &denied.violated().collect::<Vec<_>>());
                }
                Err(Refusal::Global(_)) => refusals.count(institution, &["global"]),
                Err(_) => {}
            }
            let id = admitted?.id();
            // It stays counted if that fails: it may have reached the receiver, and it was work for who
            // suffers already.
            if gateway.downstream.send(&message).await { Ok(id) } else { Err(Refusal::Downstream) }
        });
        // Only a panic, or the end of the program, ends the task early.
        sent.await.unwrap_or(Err(Refusal::Downstream))
    }

    /// Decides on a message: its levels, for which it may wait, and then the bucket.
    async fn admit(&self, message: &Message) -> Result<Admitted, Refusal> {
        let (levels, parts) = (self.policies.set(), message.parts);
        let logs = levels.logs(message).map_err(Refusal::Unknown)?;
        if let Some((Limit { name, most, .. }, _)) = logs.iter().find(|(it, _)| parts > it.most) {
            return Err(Refusal::TooLong { level: name, most: *most, parts });
        }
        let most = self.bucket.quota().limit();
        if parts > most {
            return Err(Refusal::TooLong { level: "global", most, parts });
        }
        // A message of a member that is removed meanwhile waits on for the limits that it had.
        let logs = || {
            let logs = levels.logs(message).unwrap_or_else(|_| logs.clone());
            logs.into_iter().map(|(limit, key)| (limit.policy, key, parts))
        };
        // No institution takes the places of the others. Without one a message is refused at once, but
        // overtakes none that waits.
        let share = (self.hold.hold_messages as usize / levels.institutions()).max(1);
        let place = lock(&self.places).entry(message.institution.clone()).or_default().clone();
        let has_place = Arc::strong_count(&place) - 1 <= share;
        let wait = if has_place { self.hold.hold } else { Duration::ZERO };
        let admitted = self.limiter.until_admitted_all(logs, Some(wait));
        let admitted = if wait.is_zero() {
            admitted.await
        } else {
            let mut stopping = self.stopping.clone();
            tokio::select! {
                admitted = admitted => admitted,
                _ = stopping.wait_for(|stopping| *stopping) => return Err(Refusal::Stopping),
            }
        };
        let admitted = admitted.map_err(|error| match error {
            WaitError::Denied(denied) => Refusal::Levels(denied),
            WaitError::Store(StoreError::CostAboveLimit { .. }) => Refusal::Lowered,
            WaitError::Store(error) => Refusal::Store(error),
            _ => Refusal::TooManyWait,
        })?;
        let token = self.bucket.take(&message.institution, levels.institutions(), parts);
        if token.is_err()
            && let Err(error) = self.limiter.cancel(&admitted).await
        {
            static STAYS: Throttle = Throttle::new();
            STAYS.log(move |times| {
                tracing::warn!(%error, times, "a message that was not sent stays counted");
            });
        }
        token.map(|()| admitted).map_err(Refusal::Global)
    }

    /// Returns how many messages of each institution wait or are being decided on.
    pub(crate) fn waiting(&self) -> BTreeMap<String, usize> {
        let count =
            |(name, place): (&String, &Arc<()>)| (name.clone(), Arc::strong_count(place) - 1);
        lock(&self.places).iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let reduced = |wait: Duration, detail: &str| {
            Problem::reduced_capacity(wait).detail(detail).into_response()
        };
        let (response, wait) = match self {
            Self::Unknown(Unknown(level)) => {
                let title = "The gateway's policies do not have this name";
                // The name is not repeated.
                return Problem::new(StatusCode::FORBIDDEN, &format!("unknown-{level}"), title)
                    .detail(format!("Messages are for a {level} of the gateway's policies only."))
                    .into_response();
            }
            Self::TooLong { level, most, parts } => {
                let title = "The text has more parts than can ever be sent at once";
                return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "text-too-long", title)
                    .member("level", level)
                    .member("parts", parts)
                    .member("most", most)
                    .detail(format!("It has {parts} parts, and {level} admits {most} in a window."))
                    .into_response();
            }
            Self::Lowered => {
                return reduced(A_WHILE, "So many parts do not fit while limits are lowered.");
            }
            // Not 429: the sender may well keep to all of its limits. It is the gateway that is full.
            Self::Global(wait) => return reduced(wait, "This server takes no more altogether."),
            Self::TooManyWait => return reduced(SOON, "Too many messages wait for room."),
            Self::Stopping => return reduced(SOON, "The server stops. Send the message again."),
            Self::Downstream => {
                return reduced(
                    SOON,
                    "The downstream failed. The attempt counts: it may have been sent.",
                );
            }
            Self::Levels(denied) => {
                let wait = denied.retry_after();
                (Rejection::Denied(denied).to_response(), wait)
            }
            Self::Store(error) => {
                let wait = error.retry_after().unwrap_or(SOON);
                (Rejection::StoreFailed(error).to_response(), wait)
            }
        };
        let mut response = response.map(Body::from);
        insert_retry_after(response.headers_mut(), wait);
        response
    }
}
