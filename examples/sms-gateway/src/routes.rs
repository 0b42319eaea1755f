//! The routes of the clients, and those of the admin listener.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use example_support::policies::Present;
use example_support::problem::{Problem, WholeBody, with_fallbacks};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::levels::{Document, DocumentError};
use crate::message::{Message, unreadable};

/// The longest message, in bytes.
const LONGEST_MESSAGE: usize = 24 * 1024;
/// The longest document: three lists of a thousand members.
const LONGEST_DOCUMENT: usize = 512 * 1024;

type Shared = State<Arc<Gateway>>;

/// Returns the routes of the clients.
pub(crate) fn clients(gateway: Arc<Gateway>) -> Router {
    let routes = Router::new().route("/sms", post(send)).route("/healthz", get(|| async { "ok" }));
    with_fallbacks(routes).layer(DefaultBodyLimit::max(LONGEST_MESSAGE)).with_state(gateway)
}

async fn send(State(gateway): Shared, body: WholeBody) -> Result<Response, Problem> {
    let message = Message::read(&body)?;
    let parts = message.parts;
    let sent = gateway.send(message).await.map(|id| {
        (StatusCode::ACCEPTED, Json(json!({ "message_id": id.to_string(), "parts": parts })))
    });
    Ok(sent.into_response())
}

/// Returns the routes of the admin listener.
pub(crate) fn operator(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/policies", get(policies).put(replace_policies))
        .route("/policies/{*target}", put(change).delete(change))
        .route("/state", get(state))
        .route("/downstream", put(set_downstream))
        .layer(DefaultBodyLimit::max(LONGEST_DOCUMENT))
        .with_state(gateway)
}

async fn policies(State(gateway): Shared) -> Json<Value> {
    let Present { version, document, is_stale, .. } = gateway.policies.present().await;
    Json(json!({ "version": version, "stale": is_stale, "policies": document }))
}

/// What replaces the document, as GET shows it.
#[derive(Deserialize)]
struct Replacement {
    /// The version that it replaces.
    version: u64,
    policies: Document,
}

async fn replace_policies(State(gateway): Shared, body: WholeBody) -> Result<Json<Value>, Problem> {
    let Replacement { version, policies } = body.object().map_err(|error| {
        unreadable(format!("The body is not JSON as GET /policies shows it: {error}."))
    })?;
    let version = gateway.policies.put(policies, version, bad_document).await?;
    Ok(Json(json!({ "version": version })))
}

/// PUT sets one limit, or adds a member of a list: the body is the limit. DELETE removes a member.
async fn change(
    State(gateway): Shared,
    method: Method,
    target: Result<Path<String>, PathRejection>,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let limit = std::str::from_utf8(&body).map_err(|error| unreadable(format!("{error}.")))?;
    let limit = (method == Method::PUT).then(|| limit.trim().to_owned());
    let edit = |mut document: Document| {
        if target.is_ok_and(|Path(target)| document.change(&target, limit)) {
            return Ok(document);
        }
        let title = "There is no such limit";
        Err(Problem::new(StatusCode::NOT_FOUND, "unknown-limit", title).detail(
            "There are receiver, which can't be deleted, institutions/NAME, channels/NAME and \
             destinations/+49.",
        ))
    };
    let version = gateway.policies.change(None, edit, bad_document).await?;
    Ok(Json(json!({ "version": version })))
}

fn bad_document(error: DocumentError) -> Problem {
    let title = "The request can be read, but its value can't be used";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-value", title)
        .detail(format!("Nothing was changed: {error}."))
}

async fn state(State(gateway): Shared) -> Json<Value> {
    let (refused, alerts) = gateway.refusals.shown();
    let (waiting, under_way) = (gateway.waiting(), gateway.under_way.receiver_count());
    Json(json!({
        "refused": refused,
        "alerts": alerts,
        "at_downstream": under_way.saturating_sub(waiting.values().sum()),
        "waiting": waiting,
        "institution_limits_left": gateway.policies.set().left(),
    }))
}

/// The knobs of the simulated downstream, each of which may be left as it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knobs {
    latency_ms: Option<u64>,
    errors: Option<u64>,
}

async fn set_downstream(State(gateway): Shared, body: WholeBody) -> Result<StatusCode, Problem> {
    let Knobs { latency_ms, errors } =
        body.object().map_err(|error| unreadable(format!("{error}.")))?;
    gateway.downstream.set(latency_ms.map(Duration::from_millis), errors);
    Ok(StatusCode::NO_CONTENT)
}
