//! The server's routes, and what each of them does.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use humantime::format_rfc3339_seconds;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::StoreError;
use tower_sliding_window::moderation::{Message, SpeechMonitor, SpeechQueue, Submitted};
use uuid::Uuid;

use crate::board::{Board, Place, Post};
use crate::names::{Name, Named, User};
use example_support::lock;
use example_support::problem::{Problem, with_fallbacks};

/// The longest body of a message, in bytes.
const LONGEST_BODY: usize = 256 * 1024;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Chat {
    board: Arc<Mutex<Board>>,
    monitor: SpeechMonitor,
    queue: Option<SpeechQueue>,
}

impl Chat {
    /// Creates a chat that checks messages before their delivery, or after it from a queue.
    pub(crate) fn new(monitor: SpeechMonitor, queue: Option<NonZeroUsize>) -> Self {
        let queue = queue.map(|capacity| monitor.spawn(capacity));
        Self { board: Arc::default(), monitor, queue }
    }

    /// Waits until all messages in the queue are checked.
    pub(crate) async fn finish(&self) {
        if let Some(queue) = &self.queue {
            queue.flush().await;
        }
    }

    async fn is_delivered(&self, message: Message, from: &Name) -> Result<bool, StoreError> {
        let Some(queue) = &self.queue else {
            return Ok(self.monitor.check(&message).await?.is_delivered());
        };
        if queue.submit(message) == Submitted::Shed {
            tracing::warn!(shed = queue.shed(), "a message is not checked: the queue is full");
        }
        Ok(self.monitor.mute_of(from).await?.is_none())
    }

    /// Takes a message. The response is the same whether it is delivered or not.
    async fn say(&self, place: Place, from: Name, body: Body) -> Result<Accepted, Problem> {
        let text = said(body)?;
        let mut message = Message::from(&from).text(&text);
        if place.is_private {
            message = message.to(&place.name);
        }
        let is_delivered = self.is_delivered(message, &from).await.unwrap_or_else(|error| {
            // The chat goes on while the store does not answer.
            tracing::warn!(%error, "a message is delivered without a check");
            true
        });
        let id = Uuid::new_v4().to_string();
        let accepted = json!({ "id": id });
        lock(&self.board).post(place, Post { id, from, text }, is_delivered);
        Ok((StatusCode::ACCEPTED, Json(accepted)))
    }
}

type Body = Result<Bytes, BytesRejection>;
type Accepted = (StatusCode, Json<Value>);

/// The body of a message. The content type does not matter.
#[derive(Deserialize)]
struct Said {
    text: String,
}

fn said(body: Body) -> Result<String, Problem> {
    let body = body.map_err(|_| {
        let title = "The message is too long";
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "message-too-long", title)
            .detail("The body may have 256 KiB.")
    })?;
    serde_json::from_slice(&body).map(|Said { text }| text).map_err(|why| {
        Problem::new(StatusCode::BAD_REQUEST, "bad-message", "The message is malformed")
            .detail(format!("The body must be {{\"text\": \"...\"}}, in UTF-8: {why}."))
    })
}

/// Puts the chat together.
pub(crate) fn routes(chat: Chat) -> Router {
    let messages = |is_private: bool| {
        let place = move |Named(name): Named| Place { is_private, name };
        let view = move |State(chat): State<Chat>, viewer: Option<User>, name: Named| async move {
            let viewer = viewer.map(|User(name)| name);
            Json(lock(&chat.board).view(&place(name), viewer.as_ref()))
        };
        let say = move |State(chat): State<Chat>, User(from): User, name: Named, body: Body| async move {
            chat.say(place(name), from, body).await
        };
        get(view).post(say)
    };
    let routes = Router::new()
        .route("/rooms/{room}/messages", messages(false))
        .route("/private/{peer}", messages(true))
        .route("/healthz", get(|| async { "ok" }))
        .route("/admin/mutes/{user}", get(mute).delete(unmute))
        .layer(DefaultBodyLimit::max(LONGEST_BODY));
    with_fallbacks(routes).with_state(chat)
}

async fn mute(State(chat): State<Chat>, Named(user): Named) -> Result<Json<Value>, Problem> {
    let mute =
        chat.monitor.mute_of(&user).await?.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "not-muted", "The user is not muted")
        })?;
    Ok(Json(json!({
        "user": user,
        "rule": mute.rule().to_string(),
        "reason": mute.reason().to_string(),
        "until": format_rfc3339_seconds(mute.until()).to_string(),
        "remaining_seconds": mute.remaining().as_secs(),
    })))
}

async fn unmute(State(chat): State<Chat>, Named(user): Named) -> Result<StatusCode, Problem> {
    chat.monitor.unmute(&user).await?;
    tracing::info!("audit: a mute was lifted");
    tracing::debug!(user = user.as_str(), "audit: a mute was lifted");
    Ok(StatusCode::NO_CONTENT)
}
