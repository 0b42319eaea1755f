//! The server's routes, and what each of them does.

use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_extractor;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::{MemoryStore, Policy, SlidingWindowLayer, key};
use uuid::Uuid;

use crate::board::Place;
use crate::checks::Checks;
use crate::names::{Named, USER, User};
use example_support::body::WholeBody;
use example_support::problem::{Problem, with_fallbacks};

/// The longest body of a message, in bytes.
const LONGEST_BODY: usize = 64 * 1024;

type Accepted = (StatusCode, Json<Value>);

/// The body of a message. The content type does not matter.
#[derive(Deserialize)]
struct Said {
    text: String,
}

fn said(body: &[u8]) -> Result<String, Problem> {
    serde_json::from_slice(body).map(|Said { text }| text).map_err(|why| {
        Problem::new(StatusCode::BAD_REQUEST, "bad-message", "The message is malformed")
            .detail(format!("The body must be {{\"text\": \"...\"}}, in UTF-8: {why}."))
    })
}

/// Puts the chat together. `quota` is that of a user's messages.
///
/// It is of this process, as the board is that it protects. A quota in Redis would answer later while
/// Redis is busy with the texts of a sender that is not muted.
pub(crate) fn routes(checks: Checks, quota: Policy) -> Router {
    let quota =
        SlidingWindowLayer::new(quota.named("posts"), key::header(USER), MemoryStore::new());
    let messages = |place: fn(Named) -> Place| {
        let view = move |State(checks): State<Checks>, User(viewer): User, name: Named| async move {
            checks.view(&place(name), &viewer)
        };
        let say = move |State(checks): State<Checks>,
                        User(from): User,
                        name: Named,
                        WholeBody(body): WholeBody| async move {
            let id = Uuid::new_v4().to_string();
            if !checks.accept(place(name), &id, from, said(&body)?) {
                return Err(Problem::reduced_capacity(Duration::from_secs(1)));
            }
            Ok::<Accepted, _>((StatusCode::ACCEPTED, Json(json!({ "id": id }))))
        };
        // The layer added last runs first, and none is for reading.
        post(say).route_layer(quota.clone()).route_layer(from_extractor::<User>()).get(view)
    };
    let routes = Router::new()
        .route("/rooms/{room}/messages", messages(|Named(name)| Place::Room(name)))
        .route("/private/{peer}", messages(|Named(name)| Place::Private(name)))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(LONGEST_BODY));
    with_fallbacks(routes).with_state(checks)
}
