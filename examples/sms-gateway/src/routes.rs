//! The routes of the clients.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use crate::gateway::Gateway;
use crate::message::Message;
use crate::problem;
use example_support::body::WholeBody;
use example_support::problem::{Problem, with_fallbacks};

/// The longest body, in bytes.
const LONGEST_BODY: usize = 16 * 1024;

/// Returns the routes of the clients.
pub(crate) fn routes(gateway: Arc<Gateway>) -> Router {
    let routes = Router::new().route("/sms", post(send)).route("/healthz", get(|| async { "ok" }));
    with_fallbacks(routes).layer(DefaultBodyLimit::max(LONGEST_BODY)).with_state(gateway)
}

async fn send(
    State(gateway): State<Arc<Gateway>>,
    WholeBody(body): WholeBody,
) -> Result<Response, Problem> {
    let message: Message =
        serde_json::from_slice(&body).map_err(|error| problem::bad_message(&error))?;
    let parts = message.parts;
    Ok(match gateway.send(message).await {
        Ok(id) => {
            let sent = json!({ "message_id": id.to_string(), "parts": parts });
            (StatusCode::ACCEPTED, Json(sent)).into_response()
        }
        Err(refusal) => problem::refused(refusal, parts, gateway.bucket.quota()),
    })
}
