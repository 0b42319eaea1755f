//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and why nothing is sold. The page asks once a second. With the
//! feature `metrics`, Prometheus gets the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use tower_sliding_window::{Offender, Rejection, SlidingWindowLayer, TopOffenders};

use crate::admin::Operator;
#[cfg(feature = "metrics")]
use crate::policies::USER;
use crate::policies::shown;
use crate::ready::Standstill;
use crate::routes::{Shop, whole_milliseconds};
use crate::stock::Outcome;

/// How many keys of all policies are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (600, 10);

/// What can come of orders and entries, and of payments by the names of [`Outcome`], as the page and the metrics show it.
const ORDERS: &[&str] = &[
    "ordered",
    "ordered-before",
    "sold-out",
    "denied",
    "banned",
    "unavailable",
    "other",
    "entered",
];
const PAYMENTS: &[&str] = &["paid", "too-late", "already-paid", "unknown", "unavailable", "other"];

/// Counts by outcome since the start.
struct Counts(Vec<(&'static str, AtomicU64)>);

impl Counts {
    fn of(outcomes: &[&'static str]) -> Self {
        Self(outcomes.iter().map(|outcome| (*outcome, AtomicU64::new(0))).collect())
    }

    /// Counts an outcome, by its name or among the others.
    fn add(&self, outcome: &str) {
        let find = |name| self.0.iter().find(|(it, _)| *it == name);
        if let Some((_, count)) = find(outcome).or_else(|| find("other")) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(outcome, count)| (*outcome, count.load(Ordering::Relaxed)))
    }
}

/// Counts what the server decides.
pub(crate) struct Meter {
    orders: Counts,
    payments: Counts,
    offenders: TopOffenders,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let offenders = TopOffenders::new(OFFENDERS.0);
        Self { orders: Counts::of(ORDERS), payments: Counts::of(PAYMENTS), offenders }
    }

    /// Has a layer tell whom it denies most, and bans from other responses.
    pub(crate) fn watch(&self, limit: SlidingWindowLayer) -> SlidingWindowLayer {
        limit.top_offenders(&self.offenders).on_rejection(|_, rejection| {
            let mut response = rejection.to_response();
            if let Rejection::Banned { .. } = rejection {
                response.extensions_mut().insert(Banned);
            }
            response
        })
    }

    /// Counts what came of a payment, or that the store did not say.
    pub(crate) fn count_payment(&self, outcome: Option<Outcome>) {
        let outcome = outcome.map_or_else(|| json!("unavailable"), |it| json!(it));
        self.payments.add(outcome.as_str().unwrap_or_default());
    }
}

/// Marks the response to a user who is banned.
#[derive(Clone)]
struct Banned;

/// Counts what comes of an order or an entry.
pub(crate) async fn count(State(shop): State<Arc<Shop>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    shop.meter.orders.add(match response.status() {
        _ if response.extensions().get::<Banned>().is_some() => "banned",
        StatusCode::CREATED => "ordered",
        StatusCode::CONFLICT => "ordered-before",
        StatusCode::GONE => "sold-out",
        StatusCode::TOO_MANY_REQUESTS => "denied",
        StatusCode::ACCEPTED => "entered",
        status if status.is_server_error() => "unavailable",
        _ => "other",
    });
    response
}

/// Sets the metrics of the sale once a second.
#[cfg(feature = "metrics")]
pub(crate) async fn report(shop: Arc<Shop>) {
    // It appears with its first ban otherwise, and what a series begins with is no increase to Prometheus.
    metrics::counter!("sliding_window_bans_total", "policy" => USER).increment(0);
    loop {
        for (outcome, count) in shop.meter.orders.all() {
            metrics::counter!("seckill_orders_total", "outcome" => outcome).absolute(count);
        }
        for (outcome, count) in shop.meter.payments.all() {
            metrics::counter!("seckill_payments_total", "outcome" => outcome).absolute(count);
        }
        metrics::gauge!("seckill_ready").set(f64::from(Standstill::of(&shop).is_none()));
        for (sku, on_sale) in &shop.stock {
            let gauge = |name: &'static str| metrics::gauge!(name, "sku" => sku.to_string());
            let [left, entries, turns] = match on_sale.level() {
                Ok(level) => [level.left(), level.entries, level.turns].map(f64::from),
                Err(crate::stock::StockError::Lost(_)) => [-1.0, f64::NAN, f64::NAN],
                _ => [f64::NAN; 3],
            };
            gauge("seckill_stock_left").set(left);
            gauge("seckill_entries").set(entries);
            gauge("seckill_turns").set(turns);
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

pub(crate) async fn show(State(Operator { shop, fleet, .. }): State<Operator>) -> Json<Value> {
    let stock = shop.stock.iter().map(|(sku, it)| json!({ "sku": sku, "level": it.level().ok() }));
    let offender = |it: &Offender| {
        let key = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "policy": it.policy(), "key": key, "denials": it.denials() })
    };
    let offenders = shop.meter.offenders.all();
    Json(json!({
        "orders": shop.meter.orders.all().collect::<Vec<_>>(),
        "standstill": Standstill::of(&shop),
        "stock": stock.collect::<Vec<_>>(),
        "opens_in_ms": shop.terms.opening.opens_in().map(whole_milliseconds),
        "policies": shown(&fleet).await,
        "offenders": offenders.iter().take(OFFENDERS.1).map(offender).collect::<Vec<_>>(),
    }))
}
