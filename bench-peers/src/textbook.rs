//! The middleware of a textbook: one script call per request, the client's clock in milliseconds, and
//! yes or no as the reply.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script};
use uuid::Uuid;

use crate::setup::{ADDRESS, ADDRESS_LIMIT, LIMIT, user_of};

const SCRIPT: &str = "\
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
    connection: MultiplexedConnection,
    script: Arc<Script>,
    window: Duration,
    two_rules: bool,
}

impl Textbook {
    /// With two rules, the address is checked after the user, in a call of its own.
    pub(crate) fn new(
        connection: MultiplexedConnection,
        window: Duration,
        two_rules: bool,
    ) -> Self {
        Self { connection, script: Arc::new(Script::new(SCRIPT)), window, two_rules }
    }

    /// Returns whether a key has room, and records the request if it has.
    pub(crate) async fn admit(&self, key: &str, limit: u32) -> RedisResult<bool> {
        self.script
            .key(format!("ratelimit:{key}"))
            .arg(now_ms())
            .arg(self.window.as_millis() as u64)
            .arg(limit)
            .arg(Uuid::new_v4().to_string())
            .invoke_async(&mut self.connection.clone())
            .await
    }
}

pub(crate) async fn limit(
    State(textbook): State<Textbook>,
    request: Request,
    next: Next,
) -> Response {
    let Some(user) = user_of(request.uri()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let mut admitted = textbook.admit(user, LIMIT).await;
    if textbook.two_rules && matches!(admitted, Ok(true)) {
        let address = request.headers().get(ADDRESS).and_then(|value| value.to_str().ok());
        let Some(address) = address else {
            return StatusCode::UNAUTHORIZED.into_response();
        };
        admitted = textbook.admit(address, ADDRESS_LIMIT).await;
    }
    match admitted {
        Ok(true) => next.run(request).await,
        Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}
