//! The problems that are this server's own, and its refusals as responses.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tower_sliding_window::{Quota, Rejection};

use crate::gateway::Refusal;
use crate::message::MessageError;
use crate::policies::ChangeError;
use crate::sum::GlobalTooLow;
use example_support::problem::{Problem, insert_retry_after};

/// When to try again what the downstream, or Redis, did not take.
const SOON: Duration = Duration::from_secs(1);

/// Of a body that can't be read at all.
fn no_text(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "/problems/unreadable-body", "The body can't be read")
        .detail(detail)
}

pub(crate) fn bad_message(error: &MessageError) -> Problem {
    let detail = error.to_string();
    if matches!(error, MessageError::NoJson { .. }) {
        return no_text(detail);
    }
    let title = "The body is not a message";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "/problems/bad-message", title).detail(detail)
}

pub(crate) fn bad_json(error: &serde_json::Error) -> Problem {
    no_text(format!("The body is not JSON as expected: {error}."))
}

pub(crate) fn not_utf_8() -> Problem {
    no_text("The body is not UTF-8.")
}

pub(crate) fn bad_value(detail: impl Into<String>) -> Problem {
    let title = "The body can be read, but its value can't be used";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "/problems/bad-value", title).detail(detail)
}

pub(crate) fn body(status: StatusCode) -> Problem {
    let title = status.canonical_reason().unwrap_or("The body can't be read");
    Problem::new(status, "about:blank", title)
}

pub(crate) fn not_local() -> Problem {
    let title = "Only requests from the server's own machine are served here";
    Problem::new(StatusCode::FORBIDDEN, "/problems/not-local", title)
}

fn global_too_low(error: &GlobalTooLow) -> Problem {
    let title = "The levels would admit more than the global rate";
    let detail = format!(
        "Nothing was changed: {error}. Ask for less, or start the servers with --global {}/1s.",
        error.enough()
    );
    let problem = Problem::new(StatusCode::CONFLICT, "/problems/global-too-low", title);
    let with_member = |problem: Problem, (name, value)| problem.member(name, value);
    error.members().into_iter().fold(problem.detail(detail), with_member)
}

/// Says why a message is not sent. The bucket's rate is `global`.
pub(crate) fn refused(refusal: Refusal, global: Quota) -> Response {
    let (response, wait) = match refusal {
        Refusal::UnknownInstitution => {
            let title = "There is no such institution";
            return Problem::new(StatusCode::FORBIDDEN, "/problems/unknown-institution", title)
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
                Self::new(StatusCode::NOT_FOUND, "/problems/unknown-level", title)
                    .detail(format!("Nothing was changed: {error}."))
            }
            ChangeError::GlobalTooLow(error) => global_too_low(&error),
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
