//! The routes of the users.

use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::map_response;
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
        post(say).route_layer(quota.clone()).merge(get(view).route_layer(reads.clone()))
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
    if fits { Ok(text.to_owned()) } else { Err(NAME) }
}

const NAME: &str = "a name is 1 to 128 bytes of UTF-8, and does not begin with sha256:";

fn bad_name(kind: &str, title: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, kind, title).detail(NAME)
}

/// The user that sends a request. The layers respond if there is none, or more than one.
struct User(String);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = parts.headers.get(USER).and_then(|it| std::str::from_utf8(it.as_bytes()).ok());
        let user = text.and_then(|text| name(text).ok());
        user.map(Self).ok_or_else(|| bad_name("bad-user", "The user has no proper name"))
    }
}

/// The name in the path.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        let name = path.ok().and_then(|Path(text)| name(&text).ok());
        name.map(Self).ok_or_else(|| bad_name("bad-name", "The path has no proper name"))
    }
}
