//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and the state of the store at the moment. The page asks once a second. With the
//! feature `metrics`, Prometheus gets the same.

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

use crate::policies::{Fleet, shown};
use crate::ready::Standstill;
use crate::routes::{Shop, whole_milliseconds};
use crate::stock::Outcome;
#[cfg(feature = "metrics")]
use crate::stock::StockError;

/// How many keys of each policy are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (200, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts since the start.
pub(crate) struct Meter {
    /// What comes of orders and entries: 201, 409, 410, 429, a ban, 5xx, the rest, and 202.
    classes: [AtomicU64; 8],
    /// What comes of payments: paid, too late, paid already, no answer of the store, and the rest.
    payments: [AtomicU64; 5],
    offenders: TopOffenders,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Meter {
    pub(crate) fn new() -> Self {
        let offenders = TopOffenders::new(OFFENDERS.0);
        Self { classes: Default::default(), payments: Default::default(), offenders }
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
            StatusCode::ACCEPTED => 7,
            _ => 6,
        }]);
    }

    /// Counts what came of a payment, or that the store did not say.
    pub(crate) fn count_payment(&self, outcome: Option<Outcome>) {
        add(&self.payments[match outcome {
            Some(Outcome::Paid) => 0,
            Some(Outcome::TooLate) => 1,
            Some(Outcome::AlreadyPaid) => 2,
            None => 3,
            Some(_) => 4,
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
    let live = Arc::new(live);
    #[cfg(feature = "metrics")]
    tokio::spawn(report(Arc::clone(&live)));
    Router::new().route("/admin/live", get(show)).with_state(live)
}

/// Sets the metrics of the sale once a second.
#[cfg(feature = "metrics")]
async fn report(live: Arc<Live>) {
    const ORDERS: [&str; 8] = [
        "ordered",
        "ordered-before",
        "sold-out",
        "denied",
        "banned",
        "unavailable",
        "other",
        "entered",
    ];
    const PAYMENTS: [&str; 5] = ["paid", "too-late", "already-paid", "unavailable", "other"];
    let Live { meter, shop, .. } = &*live;
    let count = |name: &'static str, outcomes: &[&'static str], counters: &[AtomicU64]| {
        for (outcome, counter) in outcomes.iter().zip(counters) {
            let count = counter.load(Ordering::Relaxed);
            metrics::counter!(name, "outcome" => *outcome).absolute(count);
        }
    };
    loop {
        count("seckill_orders_total", &ORDERS, &meter.classes);
        count("seckill_payments_total", &PAYMENTS, &meter.payments);
        metrics::gauge!("seckill_ready").set(f64::from(Standstill::of(shop).is_none()));
        for sku in &shop.skus {
            let gauge = |name: &'static str| metrics::gauge!(name, "sku" => sku.to_string());
            let [left, entries, turns] = match shop.stock.level(sku) {
                Ok(Some(level)) => {
                    let left = level.stock.saturating_sub(level.sold);
                    [left, level.entries, level.turns].map(f64::from)
                }
                Err(StockError::Lost(_)) => [-1.0, f64::NAN, f64::NAN],
                _ => [f64::NAN; 3],
            };
            gauge("seckill_stock_left").set(left);
            gauge("seckill_entries").set(entries);
            gauge("seckill_turns").set(turns);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn show(State(live): State<Arc<Live>>) -> Json<Value> {
    let Live { meter, fleet, shop, redis } = &*live;
    let store = match redis {
        Some(commands) => state_of(commands).await,
        None => json!({ "kind": "memory" }),
    };
    let stock = shop
        .skus
        .iter()
        .map(|sku| json!({ "sku": sku, "level": shop.stock.level(sku).ok().flatten() }));
    let offender = |it: &Offender| {
        let key = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "policy": it.policy(), "key": key, "denials": it.denials() })
    };
    let offenders = meter.offenders.all();
    Json(json!({
        "counts": meter.classes.each_ref().map(|count| count.load(Ordering::Relaxed)),
        "standstill": Standstill::of(shop).as_ref().map(Standstill::shown),
        "stock": stock.collect::<Vec<_>>(),
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
