//! The routes of the users.

use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{from_extractor, map_response};
use axum::routing::{get, post};
use axum::{Json, Router};
use example_support::problem::{Problem, WholeBody, no_store, with_fallbacks};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::{Key, MemoryStore, Policy, Quota, SlidingWindowLayer, key};
use uuid::Uuid;

use crate::chat::{Chat, Place, Post};

/// The header that names the user. The authentication in front of this server sets it.
const USER: &str = "x-user-id";
/// How often a user may read on each server. To look for the messages of a place takes all that are kept.
const READS: Quota = Quota::per_minute(120);
/// The longest body of a message, in bytes.
const LONGEST_BODY: usize = 8 * 1024;

/// Puts the routes together. `quota` is that of a user's messages to this server.
pub(crate) fn routes(chat: Chat, quota: Policy) -> Router {
    let quota =
        SlidingWindowLayer::new(quota.named("posts"), key::header(USER), MemoryStore::new())
            // What was not taken because too many wait does not count.
            .cancel_if(|response| response.status() == StatusCode::SERVICE_UNAVAILABLE);
    let reads = SlidingWindowLayer::new(READS, key::header(USER), MemoryStore::new());
    let messages = |place: fn(String) -> Place| {
        let view = move |State(chat): State<Chat>, User(viewer): User, Named(name): Named| async move {
            Json(chat.view(&place(name), &viewer))
        };
        let say =
            move |State(chat): State<Chat>,
                  User(from): User,
                  Named(name): Named,
                  body: WholeBody| async move { say(&chat, from, place(name), &body) };
        // The layer added last runs first.
        let say = post(say).route_layer(quota.clone());
        say.merge(get(view).route_layer(reads.clone())).route_layer(from_extractor::<User>())
    };
    let routes = Router::new()
        .route("/rooms/{room}/messages", messages(Place::Room))
        .route("/private/{peer}", messages(Place::Private))
        .layer(map_response(no_store))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(LONGEST_BODY));
    with_fallbacks(routes).with_state(chat)
}

/// The body of a message. The content type does not matter.
#[derive(Deserialize)]
struct Said {
    text: String,
}

fn say(
    chat: &Chat,
    from: String,
    place: Place,
    body: &WholeBody,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let Said { text } = body.object().map_err(|why| {
        Problem::new(StatusCode::BAD_REQUEST, "bad-message", "The message is malformed")
            .detail(format!("The body must be {{\"text\": \"...\"}}, in UTF-8: {why}."))
    })?;
    let id = Uuid::new_v4().to_string();
    let post = Post { id: id.clone(), from, text, place, is_delivered: false.into() };
    if !chat.accept(post) {
        return Err(Problem::reduced_capacity(Duration::from_secs(1)));
    }
    Ok((StatusCode::ACCEPTED, Json(json!({ "id": id }))))
}

/// Reads the name of a user or a room: one that a key does not hash, so that an operator can read whose it is.
pub(crate) fn name(text: &str) -> Result<String, &'static str> {
    let fits = !matches!(text, "" | "." | "..") && Key::from(text).as_bytes() == text.as_bytes();
    let error = "a name is 1 to 128 bytes of UTF-8, and does not begin with sha256:";
    if fits { Ok(text.to_owned()) } else { Err(error) }
}

/// The user that sends a request.
struct User(String);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(USER).iter();
        let value = values.next().filter(|value| !value.is_empty()).ok_or_else(|| {
            let title = "The request names no user";
            Problem::new(StatusCode::UNAUTHORIZED, "no-user", title)
                .detail(format!("The header {USER} is missing or empty."))
        })?;
        let user = std::str::from_utf8(value.as_bytes()).ok().and_then(|text| name(text).ok());
        user.filter(|_| values.next().is_none()).map(Self).ok_or_else(|| {
            let title = "The request does not name its user clearly";
            Problem::new(StatusCode::BAD_REQUEST, "bad-user", title).detail(format!(
                "The header {USER} must be there once, in UTF-8, be at most 128 bytes long, and not begin \
                 with sha256:."
            ))
        })
    }
}

/// The name in the path.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        path.ok().and_then(|Path(text)| name(&text).ok()).map(Self).ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "bad-name", "The path has no proper name")
                .detail("The name of a room or a user is 1 to 128 bytes of UTF-8, and does not begin with sha256:.")
        })
    }
}
