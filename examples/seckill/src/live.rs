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

/// How many keys of all policies are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (600, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// What can come of orders and entries, and of payments, as the page and the metrics show it.
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

/// Counts by outcome since the start.
struct Counts<const N: usize>([(&'static str, AtomicU64); N]);

impl<const N: usize> Counts<N> {
    fn of(outcomes: [&'static str; N]) -> Self {
        Self(outcomes.map(|outcome| (outcome, AtomicU64::new(0))))
    }

    fn add(&self, outcome: &str) {
        if let Some((_, count)) = self.0.iter().find(|(it, _)| *it == outcome) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(outcome, count)| (*outcome, count.load(Ordering::Relaxed)))
    }
}

/// Counts what the server decides.
pub(crate) struct Meter {
    orders: Counts<8>,
    payments: Counts<5>,
    offenders: TopOffenders,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let offenders = TopOffenders::new(OFFENDERS.0);
        Self { orders: Counts::of(ORDERS), payments: Counts::of(PAYMENTS), offenders }
    }

    /// Counts what the layer rejects.
    pub(crate) fn watch(self: &Arc<Self>, limit: SlidingWindowLayer) -> SlidingWindowLayer {
        let meter = Arc::clone(self);
        limit.top_offenders(&self.offenders).on_rejection(move |_, rejection| {
            match rejection {
                Rejection::Banned { .. } => meter.orders.add("banned"),
                _ => meter.count(rejection.status()),
            }
            rejection.to_response()
        })
    }

    /// Counts what came of a request that was no ban.
    pub(crate) fn count(&self, status: StatusCode) {
        self.orders.add(match status {
            StatusCode::CREATED => "ordered",
            StatusCode::CONFLICT => "ordered-before",
            StatusCode::GONE => "sold-out",
            StatusCode::TOO_MANY_REQUESTS => "denied",
            StatusCode::ACCEPTED => "entered",
            status if status.is_server_error() => "unavailable",
            _ => "other",
        });
    }

    /// Counts what came of a payment, or that the store did not say.
    pub(crate) fn count_payment(&self, outcome: Option<Outcome>) {
        self.payments.add(match outcome {
            Some(Outcome::Paid) => "paid",
            Some(Outcome::TooLate) => "too-late",
            Some(Outcome::AlreadyPaid) => "already-paid",
            None => "unavailable",
            Some(_) => "other",
        });
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
    let Live { meter, shop, .. } = &*live;
    loop {
        for (outcome, count) in meter.orders.all() {
            metrics::counter!("seckill_orders_total", "outcome" => outcome).absolute(count);
        }
        for (outcome, count) in meter.payments.all() {
            metrics::counter!("seckill_payments_total", "outcome" => outcome).absolute(count);
        }
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
        "orders": meter.orders.all().collect::<Vec<_>>(),
        "standstill": Standstill::of(shop),
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
