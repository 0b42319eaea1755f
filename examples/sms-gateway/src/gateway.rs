//! [`Gateway`]: what becomes of a message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use example_support::lock;
use example_support::policies::SharedPolicies;
use example_support::problem::{Problem, insert_retry_after};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_sliding_window::{Admitted, Limiter, Rejection, StoreError, WaitError};
use uuid::Uuid;

use crate::alerts::Refusals;
use crate::bucket::Bucket;
use crate::downstream::Downstream;
use crate::levels::Levels;
use crate::message::Message;

/// When to try again what the downstream, or Redis, did not take.
const SOON: Duration = Duration::from_secs(1);
/// When to try again what does not fit while limits are lowered, which takes a while to pass.
const A_WHILE: Duration = Duration::from_secs(10);

/// How long the messages may take whose callers have left when the server ends.
const LAST_MESSAGES: Duration = Duration::from_secs(10);

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
    /// How long a message may wait, and how many may.
    pub(crate) hold: Duration,
    pub(crate) hold_messages: usize,
    /// Of each institution, with a clone for each message that waits or is being decided on.
    pub(crate) places: Mutex<BTreeMap<String, Arc<()>>>,
    /// Becomes true when the server is asked to stop. Then no message waits any longer.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Each message on its way has a receiver.
    pub(crate) under_way: watch::Sender<()>,
}

impl Gateway {
    /// Sends a message, or returns why it is refused. One that the downstream never had leaves no trace in any
    /// window.
    ///
    /// A message goes its way to the end even if the caller no longer waits. One that the downstream
    /// fails to send stays counted: it may have reached the receiver.
    pub(crate) async fn send(self: &Arc<Self>, message: Message) -> Result<Uuid, Response> {
        let (gateway, under_way) = (self.clone(), self.under_way.subscribe());
        let sent = tokio::spawn(async move {
            let _under_way = under_way;
            let id = gateway.admit(&message).await?.id();
            Ok(gateway.downstream.send(&message).await.then_some(id))
        });
        // Only a panic, or the end of the program, ends the task early.
        let id = sent.await.unwrap_or(Ok(None))?;
        id.ok_or_else(|| {
            let may_be = "The downstream failed, or did not reply in time: the message may have been sent. \
                          The attempt counts.";
            unavailable(SOON, may_be)
        })
    }

    /// Waits for the messages whose callers have left, but no longer than is good for a server that is to end.
    pub(crate) async fn finish(&self) {
        if timeout(LAST_MESSAGES, self.under_way.closed()).await.is_err() {
            let messages = self.under_way.receiver_count();
            tracing::warn!(messages, "the end comes before these are sent");
        }
    }

    /// Decides on a message: its levels, for which it may wait, and then the bucket.
    async fn admit(&self, message: &Message) -> Result<Admitted, Response> {
        let (levels, parts, institution) =
            (self.policies.set(), message.parts, &message.institution);
        let logs = levels.logs(message).map_err(unknown)?;
        let most = self.bucket.quota.limit();
        if parts > most {
            return Err(too_long(parts, "global", most));
        }
        // Of each check those that it has by then. Without any the message is refused when its turn comes.
        let logs = || {
            let present = levels.logs(message).unwrap_or_else(|_| logs.clone());
            present.into_iter().map(|(limit, key)| (limit.policy, key, parts))
        };
        // No institution takes the places of the others. Without one a message is refused at once, but
        // overtakes none that waits.
        let share = (self.hold_messages / levels.institutions()).max(1);
        let place = lock(&self.places).entry(institution.clone()).or_default().clone();
        let has_place = Arc::strong_count(&place) - 1 <= share;
        let wait = if has_place { self.hold } else { Duration::ZERO };
        let mut stopping = self.stopping.clone();
        let stopped = async {
            let _ = stopping.wait_for(|stopping| *stopping).await;
            // A check may be under way, and the message count already.
            sleep(SOON).await;
        };
        let admitted = tokio::select! {
            admitted = self.limiter.until_admitted_all(logs, Some(wait)) => admitted,
            () = stopped, if !wait.is_zero() => {
                return Err(unavailable(SOON, "The server stops. Send the message again."));
            }
        };
        let admitted = admitted.map_err(|error| self.refused(message, error))?;
        // The message of a member that has been removed meanwhile is refused.
        let refusal = if let Err(removed) = levels.logs(message) {
            unknown(removed)
        } else if let Err(wait) = self.bucket.take(institution, levels.institutions(), parts) {
            self.refusals.count(institution, &["global"]);
            // Not 429: the sender may well keep to all of its limits. It is the gateway that is full.
            unavailable(wait, "This server takes no more altogether.")
        } else {
            self.refusals.count(institution, &[]);
            return Ok(admitted);
        };
        // While the store fails, it stays counted.
        let _ = self.limiter.cancel(&admitted).await;
        Err(refusal)
    }

    /// Counts a message that the levels do not admit, and returns the answer.
    fn refused(&self, message: &Message, error: WaitError) -> Response {
        let (institution, parts) = (&message.institution, message.parts);
        let wait = error.retry_after().unwrap_or(SOON);
        let rejection = match error {
            WaitError::Denied(denied) => {
                self.refusals.count(institution, &denied.violated().collect::<Vec<_>>());
                Rejection::Denied(denied)
            }
            WaitError::Store(StoreError::CostAboveLimit { .. }) => {
                let logs = self.policies.set().logs(message).unwrap_or_default();
                if let Some((limit, _)) = logs.iter().find(|(limit, _)| parts > limit.most) {
                    return too_long(parts, limit.policy.get().name(), limit.most);
                }
                // The controller lowers those of institutions.
                self.refusals.count(institution, &["institution"]);
                return unavailable(A_WHILE, "So many parts do not fit while limits are lowered.");
            }
            WaitError::Store(error) => Rejection::StoreFailed(error),
            _ => return unavailable(wait, "Too many messages wait for room."),
        };
        let mut response = rejection.to_response().map(Body::from);
        insert_retry_after(response.headers_mut(), wait);
        response
    }

    /// Returns how many messages of each institution wait or are being decided on.
    pub(crate) fn waiting(&self) -> BTreeMap<String, usize> {
        let count =
            |(name, place): (&String, &Arc<()>)| (name.clone(), Arc::strong_count(place) - 1);
        lock(&self.places).iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}

fn unavailable(wait: Duration, detail: &str) -> Response {
    Problem::reduced_capacity(wait).detail(detail).into_response()
}

/// Of a name that no level has. It is not repeated.
fn unknown(level: &str) -> Response {
    let title = "The gateway's policies do not have this name";
    Problem::new(StatusCode::FORBIDDEN, &format!("unknown-{level}"), title)
        .detail(format!("There is no such {level} in them."))
        .into_response()
}

/// Of a text that no wait makes fit.
fn too_long(parts: u32, level: &str, most: u32) -> Response {
    let title = "The text has more parts than can ever be sent at once";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "text-too-long", title)
        .member("level", level)
        .member("parts", parts)
        .member("most", most)
        .detail(format!("It has {parts} parts, and {level} admits {most} in a window."))
        .into_response()
}
