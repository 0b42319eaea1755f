//! The problems that are this server's own, and its refusals as responses.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::error::Category;
use tower_sliding_window::{Quota, Rejection};

use crate::gateway::Refusal;
use crate::policies::ChangeError;
use example_support::problem::{Problem, insert_retry_after};

/// When to try again what the downstream, or Redis, did not take.
const SOON: Duration = Duration::from_secs(1);

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

/// Says why a message is not sent. The bucket's rate is `global`.
pub(crate) fn refused(refusal: Refusal, global: Quota) -> Response {
    let (response, wait) = match refusal {
        Refusal::UnknownInstitution => {
            let title = "There is no such institution";
            return Problem::new(StatusCode::FORBIDDEN, "unknown-institution", title)
                .detail("Only institutions that the gateway was started with may send.")
                .into_response();
        }
        // Not 429: the sender may well keep to all of its quotas. It is the gateway that is full.
        Refusal::Global(wait) => {
            let detail = format!("The gateway takes no more than {global} altogether.");
            return Problem::reduced_capacity(wait).detail(detail).into_response();
        }
        Refusal::Downstream => {
            let detail = "The downstream did not take the message.";
            return Problem::reduced_capacity(SOON).detail(detail).into_response();
        }
        Refusal::Levels(denied) => {
            let wait = denied.retry_after();
            (Rejection::Denied(*denied).to_response(), wait)
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

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Unknown(error) => {
                let title = "There is no such level or institution";
                Self::new(StatusCode::NOT_FOUND, "unknown-level", title)
                    .detail(format!("Nothing was changed: {error}."))
            }
            ChangeError::GlobalTooLow(error) => {
                let title = "The levels would admit more than the global rate";
                let problem = Self::new(StatusCode::CONFLICT, "global-too-low", title);
                let with_member = |problem: Self, (name, value)| problem.member(name, value);
                error.members().into_iter().fold(problem, with_member).detail(format!(
                    "Nothing was changed: {error}. Ask for less, or start the servers with \
                     --global {}/1s.",
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
