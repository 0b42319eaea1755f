//! What the server decides, and whether anything can be sold. [`Meter`] counts, and `GET /admin/live` shows the
//! counts, the stock and why nothing is sold, once a second to the live page. With the feature `metrics`,
//! Prometheus gets the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};
use tower_sliding_window::{Offender, Rejection, SlidingWindowLayer, TopOffenders};

use crate::admin::Operator;
use crate::names::Sku;
#[cfg(feature = "metrics")]
use crate::policies::USER;
use crate::policies::shown;
use crate::routes::{Shop, whole_milliseconds};
use crate::stock::{KEYS, Outcome, StockError};
use example_support::problem::Problem;

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
        for on_sale in &shop.stock {
            let gauge =
                |name: &'static str| metrics::gauge!(name, "sku" => on_sale.sku.to_string());
            let [left, entries, turns] = match on_sale.level() {
                Ok(level) => [level.left(), level.entries, level.turns].map(f64::from),
                Err(StockError::Lost(_)) => [-1.0, f64::NAN, f64::NAN],
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
    let stock = shop.stock.iter().map(|it| json!({ "sku": it.sku, "level": it.level().ok() }));
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

/// Why nothing is sold, of one SKU or at all.
#[derive(Serialize)]
pub(crate) struct Standstill {
    /// A sentence for an operator.
    reason: String,
    hint: String,
    /// Whether it is of all SKUs.
    #[serde(skip)]
    is_whole: bool,
}

/// Says that some SKUs are lost, or `all` that there are, and how to go on without them. New sales have no opening of their own
/// if others go on: their draws would be closed again although the secrets are known. The refunds stay: they are owed.
pub(crate) fn new_sales(prefix: &str, lost: &[Sku], all: bool) -> (String, String) {
    // With `-c` any node of a Cluster will do.
    let unlink = |sku: &Sku| {
        let keys = KEYS.iter().filter(|what| **what != "refunds");
        let keys: String = keys.map(|what| format!(" '{prefix}:{{{sku}}}:{what}'")).collect();
        format!("redis-cli -c UNLINK{keys}")
    };
    let opening = all.then(|| format!("redis-cli -c DEL {prefix}:opening"));
    let commands = lost.iter().map(unlink).chain(opening).collect::<Vec<_>>().join("; ");
    let names = lost.iter().map(Sku::to_string).collect::<Vec<_>>().join(", ");
    let hint = format!(
        "Stop all servers. Restore the keys {prefix}:{{SKU}}:* from a backup, or save what {prefix}:{{SKU}}:orders and :paid \
         still hold, because the new sale does not know who has paid, and begin one: `{commands}`, with -h, -p and -n as in \
         --redis. Then start them."
    );
    (format!("Redis has lost the stock of {names}"), hint)
}

impl Standstill {
    /// Looks at what this server has last seen of its SKUs. Asks nobody.
    pub(crate) fn of(shop: &Shop) -> Option<Self> {
        let Shop { stock, prefix, .. } = shop;
        let failed = stock.iter().filter_map(|it| Some((&it.sku, it.trouble()?)));
        let failed: Vec<_> = failed.collect();
        let is_lost = |it: &&(_, _)| matches!(it.1, StockError::Lost(_));
        let lost: Vec<Sku> = failed.iter().filter(is_lost).map(|(sku, _)| (*sku).clone()).collect();
        // What is lost does not come back by itself, as others may.
        let (sku, error) = failed.iter().find(is_lost).or(failed.first())?;
        let (why, hint) = match error {
            StockError::Lost(_) => new_sales(prefix, &lost, lost.len() == stock.len()),
            error => (
                format!("the stock can't be read or changed. {error}"),
                "Is Redis up, reachable from this server, and ready for writes, with the replicas of --min-replicas? \
                 Is the login of --redis right, there or at the Sentinels, and has its user the rights in SECURITY.md? \
                 The log says what is wrong. Once that is mended, the sale goes on by itself."
                    .into(),
            ),
        };
        let is_whole = failed.len() == stock.len();
        let what = if is_whole { "Nothing".into() } else { format!("No {sku}") };
        // Redis's own messages may end with a full stop.
        let reason = format!("{what} is sold: {}.", why.trim_end_matches('.'));
        Some(Self { reason, hint, is_whole })
    }
}

/// For a balancer. While nothing is sold here, other servers may be better off. If only some SKUs are not, all others are
/// needed.
pub(crate) async fn readyz(State(shop): State<Arc<Shop>>) -> Result<String, Problem> {
    let Some(Standstill { reason, hint, is_whole }) = Standstill::of(&shop) else {
        return Ok("ready".into());
    };
    let what = format!("{reason} {hint}");
    if !is_whole {
        return Ok(format!("ready. {what}"));
    }
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Nothing is sold");
    Err(problem.detail(what))
}
