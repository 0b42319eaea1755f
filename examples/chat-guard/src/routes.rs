//! The server's routes, and what each of them does.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
use crate::problem;
use example_support::problem::Problem;

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

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
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
        let message = Message::from(&from).text(&text);
        let message = match &place {
            Place::Room(_) => message,
            Place::Private(peer) => message.to(peer),
        };
        let is_delivered = self.is_delivered(message, &from).await.unwrap_or_else(|error| {
            // The chat goes on while the store does not answer.
            tracing::warn!(%error, "a message is delivered without a check");
            true
        });
        let id = Uuid::new_v4().to_string();
        let accepted = json!({ "id": id });
        self.board().post(place, Post { id, from, text }, is_delivered);
        Ok((StatusCode::ACCEPTED, Json(accepted)))
    }

    fn show(&self, place: &Place, viewer: Option<User>) -> Json<Vec<Post>> {
        let viewer = viewer.map(|User(name)| name);
        Json(self.board().view(place, viewer.as_ref()))
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
    let body = body.map_err(|_| problem::too_long())?;
    serde_json::from_slice(&body)
        .map(|Said { text }| text)
        .map_err(|why| problem::bad_message(&why))
}

/// Puts the chat together.
pub(crate) fn routes(chat: Chat) -> Router {
    Router::new()
        .route("/rooms/{room}/messages", get(room).post(say_in_room))
        .route("/private/{peer}", get(private).post(say_in_private))
        .route("/admin/mutes/{user}", get(mute).delete(unmute))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .fallback(|| async { Problem::no_such_page() })
        .method_not_allowed_fallback(|| async { Problem::wrong_method() })
        .with_state(chat)
}

async fn say_in_room(
    State(chat): State<Chat>,
    User(from): User,
    Named(room): Named,
    body: Body,
) -> Result<Accepted, Problem> {
    chat.say(Place::Room(room), from, body).await
}

async fn say_in_private(
    State(chat): State<Chat>,
    User(from): User,
    Named(peer): Named,
    body: Body,
) -> Result<Accepted, Problem> {
    chat.say(Place::Private(peer), from, body).await
}

async fn room(
    State(chat): State<Chat>,
    viewer: Option<User>,
    Named(room): Named,
) -> Json<Vec<Post>> {
    chat.show(&Place::Room(room), viewer)
}

async fn private(
    State(chat): State<Chat>,
    viewer: Option<User>,
    Named(peer): Named,
) -> Json<Vec<Post>> {
    chat.show(&Place::Private(peer), viewer)
}

async fn mute(State(chat): State<Chat>, Named(user): Named) -> Result<Json<Value>, Problem> {
    let mute = chat.monitor.mute_of(&user).await?.ok_or_else(problem::not_muted)?;
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
