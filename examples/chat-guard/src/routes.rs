//! The server's routes, and what each of them does.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::StoreError;
use tower_sliding_window::moderation::{Message, SpeechMonitor, SpeechQueue, Submitted};
use uuid::Uuid;

use crate::board::{Board, Place, Post};
use crate::names::{Name, Named, User};
use example_support::body::WholeBody;
use example_support::lock;
use example_support::logs::Throttle;
use example_support::problem::{Problem, with_fallbacks};

/// The longest body of a message, in bytes.
const LONGEST_BODY: usize = 64 * 1024;

static SHED: Throttle = Throttle::new();
static UNCHECKED: Throttle = Throttle::new();

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
        if queue.submit(message) == Submitted::Shed
            && let Some(times) = SHED.pass()
        {
            tracing::warn!(times, "messages are not checked: the queue is full");
        }
        Ok(self.monitor.mute_of(from).await?.is_none())
    }

    /// Takes a message. The response is the same whether it is delivered or not.
    async fn say(&self, place: Place, from: Name, body: &[u8]) -> Result<Accepted, Problem> {
        let text = said(body)?;
        let mut message = Message::from(&from).text(&text);
        if place.is_private {
            message = message.to(&place.name);
        }
        let is_delivered = self.is_delivered(message, &from).await.unwrap_or_else(|error| {
            // The chat goes on while the store does not answer.
            if let Some(times) = UNCHECKED.pass() {
                tracing::warn!(%error, times, "messages are delivered without a check");
            }
            true
        });
        let id = Uuid::new_v4().to_string();
        let accepted = json!({ "id": id });
        let post = Post { id: &id, from: &from, text: &text };
        lock(&self.board).post(place, &post, is_delivered);
        Ok((StatusCode::ACCEPTED, Json(accepted)))
    }
}

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

/// Puts the chat together.
pub(crate) fn routes(chat: Chat) -> Router {
    let messages = |is_private: bool| {
        let place = move |Named(name): Named| Place { is_private, name };
        let view = move |State(chat): State<Chat>, viewer: Option<User>, name: Named| async move {
            let viewer = viewer.map(|User(name)| name);
            lock(&chat.board).view(place(name), viewer)
        };
        let say = move |State(chat): State<Chat>,
                        User(from): User,
                        name: Named,
                        body: WholeBody| async move {
            chat.say(place(name), from, &body.0).await
        };
        get(view).post(say)
    };
    let routes = Router::new()
        .route("/rooms/{room}/messages", messages(false))
        .route("/private/{peer}", messages(true))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(LONGEST_BODY));
    with_fallbacks(routes).with_state(chat)
}
