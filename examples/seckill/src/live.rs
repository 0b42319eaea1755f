//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and the state of the store at the moment. The page asks once a second.

use std::collections::HashMap;
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
use tower_sliding_window::{
    Bans, DecidedBy, Offender, Rejection, SlidingWindowLayer, StoreError, TopOffenders,
};

use crate::policies::{Fleet, USER, shown};
use crate::routes::{Shop, whole_milliseconds};
use example_support::problem::whole_seconds;

/// How many keys of each policy are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (200, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts since the start.
pub(crate) struct Meter {
    /// What comes of requests: 201, 409, 410, 429, a ban, 5xx, and the rest.
    classes: [AtomicU64; 7],
    /// By the store, by the log of this process, and by the failure policy alone.
    decided_by: [AtomicU64; 3],
    offenders: TopOffenders,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn all<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    counters.each_ref().map(|counter| counter.load(Ordering::Relaxed))
}

impl Meter {
    pub(crate) fn new() -> Self {
        let offenders = TopOffenders::new(OFFENDERS.0);
        Self { classes: Default::default(), decided_by: Default::default(), offenders }
    }

    /// Counts the decisions of the layer, and what it rejects.
    pub(crate) fn watch(self: &Arc<Self>, limit: SlidingWindowLayer) -> SlidingWindowLayer {
        let (decided, rejected) = (Arc::clone(self), Arc::clone(self));
        limit
            .top_offenders(&self.offenders)
            .on_decision(move |decision| {
                add(&decided.decided_by[match decision.decided_by() {
                    DecidedBy::LocalLog => 1,
                    DecidedBy::FailurePolicy => 2,
                    // The rest is the store.
                    _ => 0,
                }]);
            })
            .on_rejection(move |_, rejection| {
                match rejection {
                    Rejection::Banned { .. } => add(&rejected.classes[4]),
                    _ => rejected.count(rejection.status()),
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
    pub(crate) bans: Bans,
    /// `None` if everything is in this process.
    pub(crate) redis: Option<RedisCommands>,
}

/// Returns the route of the figures.
pub(crate) fn routes(live: Live) -> Router {
    Router::new().route("/admin/live", get(show)).with_state(Arc::new(live))
}

async fn show(State(live): State<Arc<Live>>) -> Json<Value> {
    let Live { meter, fleet, shop, bans, redis } = &*live;
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
    let mut banned = HashMap::new();
    let mut offenders = meter.offenders.of(USER);
    offenders.truncate(OFFENDERS.1);
    // A store that does not reply is not asked once more for each of them.
    for offender in offenders.iter().filter(|_| store.get("error").is_none()) {
        if let Ok(Some(ban)) = bans.get(offender.key().clone()).await {
            banned.insert(offender.key().clone(), whole_seconds(ban.remaining()));
        }
    }
    let offender = |it: &Offender| {
        let user = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "user": user, "denials": it.denials(), "banned_seconds": banned.get(it.key()) })
    };
    let [by_store, by_local_log, by_failure_policy] = all(&meter.decided_by);
    Json(json!({
        "counts": all(&meter.classes),
        "stock": stock,
        "opens_in_ms": shop.opening.opens_in().map(whole_milliseconds),
        "store": store,
        "decided_by": { "store": by_store, "local": by_local_log, "policy": by_failure_policy },
        "policies": shown(fleet).await,
        "offenders": offenders.iter().map(offender).collect::<Vec<_>>(),
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
