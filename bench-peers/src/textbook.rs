//! The middleware of a textbook: one script call per request, the client's clock in milliseconds, and
//! yes or no as the reply.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use redis::Script;
use redis::aio::ConnectionManager;
use uuid::Uuid;

use crate::setup::{LIMIT, user_of};

pub(crate) const SCRIPT: &str = "\
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
if redis.call('ZCARD', KEYS[1]) < limit then
  redis.call('ZADD', KEYS[1], now, ARGV[4])
  redis.call('PEXPIRE', KEYS[1], window)
  return 1
end
return 0
";

#[derive(Clone)]
pub(crate) struct Textbook {
    connection: ConnectionManager,
    script: Arc<Script>,
    window: Duration,
}

impl Textbook {
    pub(crate) fn new(connection: ConnectionManager, window: Duration) -> Self {
        Self { connection, script: Arc::new(Script::new(SCRIPT)), window }
    }
}

pub(crate) async fn limit(
    State(mut textbook): State<Textbook>,
    request: Request,
    next: Next,
) -> Response {
    let Some(user) = user_of(request.uri()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let admitted = textbook
        .script
        .key(format!("ratelimit:{user}"))
        .arg(now_ms())
        .arg(textbook.window.as_millis() as u64)
        .arg(LIMIT)
        .arg(Uuid::new_v4().to_string())
        .invoke_async::<bool>(&mut textbook.connection)
        .await;
    match admitted {
        Ok(true) => next.run(request).await,
        Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}
