//! The problems that are this server's own, and its refusals as responses.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::error::Category;
use tower_sliding_window::{Policy, Quota, Rejection};

use crate::gateway::Refusal;
use crate::policies::ChangeError;
use crate::refusals::Refuser;
use crate::thresholds::List;
use example_support::problem::{Problem, insert_retry_after};

/// When to try again what the downstream, or Redis, did not take.
const SOON: Duration = Duration::from_secs(1);
/// When to try again what does not fit while thresholds are lowered, which takes a while to pass.
const A_WHILE: Duration = Duration::from_secs(10);

/// Of a body that can't be read at all.
pub(crate) fn unreadable(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "unreadable-body", "The body can't be read")
        .detail(detail)
}

pub(crate) fn bad_message(error: &serde_json::Error) -> Problem {
    if error.classify() != Category::Data {
        return unreadable(format!("The body is not JSON: {error}."));
    }
    let title = "The body is not a message";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-message", title).detail(format!(
        "The body must be a JSON object with the members institution, channel, to and text, each \
         once: {error}."
    ))
}

pub(crate) fn bad_json(error: &serde_json::Error) -> Problem {
    unreadable(format!("The body is not JSON as expected: {error}."))
}

pub(crate) fn bad_value(detail: impl Into<String>) -> Problem {
    let title = "The body can be read, but its value can't be used";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-value", title).detail(detail)
}

/// Reads a policy as JSON, or as text: `"500/1s"` and `500/1s` are the same.
pub(crate) fn policy(body: &[u8]) -> Result<Policy, Problem> {
    let text = std::str::from_utf8(body).map_err(|_| unreadable("The body is not UTF-8."))?.trim();
    let text = match text.starts_with('"') {
        true => serde_json::from_str(text).map_err(|error| bad_json(&error))?,
        false => text.to_owned(),
    };
    text.parse().map_err(|error| bad_value(format!("{error}.")))
}

/// Says why a message of so many parts is not sent. The bucket's rate is `global`.
pub(crate) fn refused(refusal: Refusal, parts: u32, global: Quota) -> Response {
    let (response, wait) = match refusal {
        Refusal::Unknown(list) => return unknown(list).into_response(),
        Refusal::TooLong { refuser, most } => {
            return too_long(refuser, parts, most).into_response();
        }
        Refusal::Lowered => {
            let detail = format!(
                "The downstream suffers, and the thresholds are lowered: a text of {parts} parts does \
                 not fit now."
            );
            return Problem::reduced_capacity(A_WHILE).detail(detail).into_response();
        }
        // Not 429: the sender may well keep to all of its quotas. It is the gateway that is full.
        Refusal::Global(wait) => {
            let detail = format!("This server takes no more than {global} altogether.");
            return Problem::reduced_capacity(wait).detail(detail).into_response();
        }
        Refusal::Hold(wait) => {
            let detail = "Too many messages wait for room.";
            return Problem::reduced_capacity(wait).detail(detail).into_response();
        }
        Refusal::Stopping => {
            let detail = "The message has waited for room, and the server stops. Send it again.";
            return Problem::reduced_capacity(SOON).detail(detail).into_response();
        }
        Refusal::Downstream => {
            let detail =
                "The downstream failed. The attempt counts, for the message may have been sent.";
            return Problem::reduced_capacity(SOON).detail(detail).into_response();
        }
        Refusal::Levels(denied) => {
            let wait = denied.retry_after();
            (Rejection::Denied(denied).to_response(), wait)
        }
        Refusal::Store(error) => {
            let wait = error.retry_after().unwrap_or(SOON);
            (Rejection::StoreFailed(error).to_response(), wait)
        }
    };
    let mut response = response.map(Body::from);
    insert_retry_after(response.headers_mut(), wait);
    response
}

/// Of a name that a list does not have. Its name is not repeated.
fn unknown(list: List) -> Problem {
    match list {
        List::Institutions => {
            let title = "There is no such institution";
            Problem::new(StatusCode::FORBIDDEN, "unknown-institution", title).detail(
                "Only institutions that the gateway was started with, or has got since, may send.",
            )
        }
        List::Channels => {
            let title = "There is no such channel";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-channel", title).detail(
                "Messages take the channels that the gateway was started with, or has got since.",
            )
        }
        List::Destinations => {
            let title = "No message may go to this number";
            Problem::new(StatusCode::FORBIDDEN, "unknown-destination", title).detail(
                "Messages go to numbers that begin as a destination that the gateway was started \
                 with, or has got since.",
            )
        }
    }
}

/// Of a text that no wait makes fit.
fn too_long(refuser: Refuser, parts: u32, most: u32) -> Problem {
    let title = "The text has more parts than can ever be sent at once";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "text-too-long", title)
        .member("level", refuser.name())
        .member("parts", parts)
        .member("most", most)
        .detail(format!(
            "The text takes {parts} parts, and the {} threshold admits {most} in a window.",
            refuser.name()
        ))
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Unknown(error) => {
                let title = "There is no such level or member";
                Self::new(StatusCode::NOT_FOUND, "unknown-level", title)
                    .detail(format!("Nothing was changed: {error}."))
            }
            ChangeError::TooMany => {
                let title = "The list is full";
                Self::new(StatusCode::CONFLICT, "too-many", title)
                    .detail(format!("Nothing was changed: {error}. DELETE one first."))
            }
            ChangeError::GlobalTooLow(error) => {
                let title = "The levels would admit more than the global rate";
                let problem = Self::new(StatusCode::CONFLICT, "global-too-low", title);
                let with_member = |problem: Self, (name, value)| problem.member(name, value);
                error.members().into_iter().fold(problem, with_member).detail(format!(
                    "Nothing was changed: {error}. Ask for less, or start the servers with \
                     --global {}/1s, or with more --servers if there are more.",
                    error.enough()
                ))
            }
            ChangeError::Redis(error) => {
                tracing::warn!(%error, "a change could not be written to Redis");
                Self::reduced_capacity(SOON).detail(
                    "Redis did not answer. If it received the change, it applies when Redis answers \
                     again.",
                )
            }
            ChangeError::Contended => Self::reduced_capacity(SOON)
                .detail("Nothing was changed: other servers were faster, again and again."),
        }
    }
}
