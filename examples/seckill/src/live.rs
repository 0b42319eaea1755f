//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and the state of the store at the moment. The page asks once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tower_sliding_window::store::RedisCommands;
use tower_sliding_window::{Offender, Rejection, SlidingWindowLayer, StoreError, TopOffenders};

use crate::policies::{Fleet, USER, shown};
use crate::routes::{Shop, whole_milliseconds};

/// How many keys of each policy are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (200, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts since the start.
pub(crate) struct Meter {
    /// What comes of requests: 201, 409, 410, 429, a ban, 5xx, and the rest.
    classes: [AtomicU64; 7],
    offenders: TopOffenders,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { classes: Default::default(), offenders: TopOffenders::new(OFFENDERS.0) }
    }

    /// Counts what the layer rejects.
    pub(crate) fn watch(self: &Arc<Self>, limit: SlidingWindowLayer) -> SlidingWindowLayer {
        let meter = Arc::clone(self);
        limit.top_offenders(&self.offenders).on_rejection(move |_, rejection| {
            match rejection {
                Rejection::Banned { .. } => add(&meter.classes[4]),
                _ => meter.count(rejection.status()),
            }
            rejection.to_response()
        })
    }

    /// Counts what came of a request that was no ban.
    pub(crate) fn count(&self, status: StatusCode) {
        add(&self.classes[match status {
            StatusCode::CREATED => 0,
            StatusCode::CONFLICT => 1,
            StatusCode::GONE => 2,
            StatusCode::TOO_MANY_REQUESTS => 3,
            status if status.is_server_error() => 5,
            _ => 6,
        }]);
    }
}

/// What the page shows.
pub(crate) struct Live {
    pub(crate) meter: Arc<Meter>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) shop: Arc<Shop>,
    /// `None` if everything is in this process.
    pub(crate) redis: Option<RedisCommands>,
}

/// Returns the route of the figures.
pub(crate) fn routes(live: Live) -> Router {
    Router::new().route("/admin/live", get(show)).with_state(Arc::new(live))
}

async fn show(State(live): State<Arc<Live>>) -> Json<Value> {
    let Live { meter, fleet, shop, redis } = &*live;
    let store = match redis {
        Some(commands) => state_of(commands).await,
        None => json!({ "kind": "memory" }),
    };
    let mut stock = Vec::new();
    for sku in &shop.skus {
        // What is not known is not shown: the state of the store says why.
        if let Ok(Some(level)) = shop.stock.level(sku) {
            stock.push(json!({ "sku": sku, "stock": level.stock, "sold": level.sold }));
        }
    }
    let offender = |it: &Offender| {
        let user = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "user": user, "denials": it.denials() })
    };
    let offenders = meter.offenders.of(USER);
    Json(json!({
        "counts": meter.classes.each_ref().map(|count| count.load(Ordering::Relaxed)),
        "stock": stock,
        "opens_in_ms": shop.terms.opening.opens_in().map(whole_milliseconds),
        "store": store,
        "policies": shown(fleet).await,
        "offenders": offenders.iter().take(OFFENDERS.1).map(offender).collect::<Vec<_>>(),
    }))
}

/// Tells how Redis replies.
async fn state_of(commands: &RedisCommands) -> Value {
    let sent = Instant::now();
    let ping = redis::cmd("PING");
    let reply = timeout(PATIENCE, commands.query::<redis::Value>(&ping)).await;
    match reply.unwrap_or(Err(StoreError::Timeout)) {
        Ok(_) => json!({ "kind": "redis", "round_trip_ms": sent.elapsed().as_secs_f64() * 1e3 }),
        Err(error) => json!({ "kind": "redis", "error": error.to_string() }),
    }
}
