//! The server's routes, and what each of them does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    FailurePolicy, KeyExtractor, MemoryStore, Policy, Quota, SlidingWindowLayer,
};
use uuid::Uuid;

use crate::args::Args;
use crate::draw::{self, Draw, FIRST_COME, Ticket};
use crate::live::{Meter, count, readyz};
use crate::names::{OrderId, Sku, UserId};
use crate::pages;
use crate::policies::Limits;
use crate::stock::{Call, OnSale, Outcome, Reply, StockError, Terms};
use example_support::admin::{AdminError, guarded};
use example_support::problem::{Problem, WholeBody, no_store, with_fallbacks};

/// How often a user may look up orders and entries on each server.
const READS: Quota = Quota::per_minute(60);
/// How often a user may send an entry to each server, whatever `--quota` says.
const ENTRIES: Quota = Quota::per_minute(1000);

/// The longest id of a payment, and the longest body that names one, in bytes.
const LONGEST_PAYMENT_ID: usize = 128;
const LONGEST_BODY: usize = 4096;

/// What the handlers share.
pub(crate) struct Shop {
    /// What is for sale, in the order of the flags.
    pub(crate) stock: Vec<OnSale>,
    pub(crate) terms: Terms,
    /// What the keys in Redis begin with.
    pub(crate) prefix: String,
    pub(crate) user: Arc<dyn KeyExtractor>,
    /// Whether payments come from a provider with a token, and a Redis keeps those that buy nothing.
    pub(crate) keeps_refunds: bool,
    /// Counts what comes of orders.
    pub(crate) meter: Meter,
}

/// Puts the shop together.
pub(crate) fn routes(
    args: &Args,
    shop: Arc<Shop>,
    limits: &Limits,
    windows: Arc<dyn Store>,
) -> Result<Router, AdminError> {
    let user = Arc::clone(&shop.user);
    // Two rules, one decision: a request counts for its user and for its address, or for neither.
    let mut limit = SlidingWindowLayer::new(limits.user(), user.clone(), windows);
    limit = limit.failure_policy(args.on_failure);
    if args.admin.admin.is_some() {
        limit = shop.meter.watch(limit);
    }
    let limit = limits.of_addresses(limit, |it| &it.ip);
    let entry_limit = limits.of_accounts(limit.clone(), &user);
    // Kept in this process: a read that is refused costs Redis nothing, and one that is not costs it no
    // check. Entries are counted here first: one that `accounts` denies counts nowhere else, and would ask Redis each time.
    let [read_limit, entries_here] = [("read", READS), ("entry", ENTRIES)].map(|(name, quota)| {
        let policy = Policy::new(name).quota(quota);
        let limit = SlidingWindowLayer::new(policy, user.clone(), MemoryStore::new());
        limits.of_addresses(limit, |it| &it.reads)
    });
    // If there is no room here, Redis decides as ever.
    let entries_here = entries_here.failure_policy(FailurePolicy::Open);

    let payment = Router::new().route("/orders/{order_id}/payment", post(pay));
    let payment = payment.layer(DefaultBodyLimit::max(LONGEST_BODY));
    let payment = match &args.payment_token {
        Some(token) => guarded(payment, token)?,
        None => {
            tracing::warn!(
                "payments are simulated: without --payment-token everybody can pay an order"
            );
            payment
        }
    };
    let mut orders = post(place_order).route_layer(limit);
    if shop.stock.iter().any(|it| it.draw.is_some()) {
        let tickets = from_fn_with_state(Arc::clone(&shop), draw::with_ticket);
        orders = orders.route_layer(tickets);
    }
    let mut entries = post(draw::enter).route_layer(entry_limit).route_layer(entries_here);
    if args.admin.admin.is_some() {
        let count = from_fn_with_state(Arc::clone(&shop), count);
        (orders, entries) = (orders.route_layer(count.clone()), entries.route_layer(count));
    }
    let reads = Router::new()
        .route("/seckill/{sku}/entry", get(draw::show).route_layer(read_limit.clone()))
        .route("/seckill/{sku}", get(level))
        .route("/orders/{order_id}", get(order).route_layer(read_limit))
        .layer(map_response(no_store));
    let routes = Router::new()
        // `route_layer` guards this route's own method only: neither other routes nor a 405 are
        // counted.
        .route("/seckill/{sku}/orders", orders)
        .route("/seckill/{sku}/entries", entries)
        .merge(reads)
        .merge(payment)
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .with_state(Arc::clone(&shop));
    let skus: Vec<&Sku> = shop.stock.iter().map(|it| &it.sku).collect();
    Ok(with_fallbacks(routes.merge(pages::shop(&skus))))
}

pub(crate) type PathText = Result<Path<String>, PathRejection>;
pub(crate) type Answer = Result<Json<Value>, Problem>;

/// Runs behind the layer, so the request counts whatever the response is. A client that hammers the
/// route before the sale opens has a full quota when it opens.
async fn place_order(
    State(shop): State<Arc<Shop>>,
    user: UserId,
    ticket: Option<Extension<Ticket>>,
    path: PathText,
) -> Result<impl IntoResponse, Problem> {
    shop.terms.opening.check()?;
    let on_sale = shop.sku(path)?;
    let sku = &on_sale.sku;
    let ticket = ticket.map_or(0, |Extension(Ticket(end))| end);
    let order = OrderId { sku: sku.clone(), uuid: Uuid::new_v4() };
    let call = Call::Order { user: user.as_str(), order: &order.uuid.to_string(), ticket };
    let reply = on_sale.call(call).await.map_err(StockError::of_a_change)?;
    match reply.outcome {
        Outcome::Placed => {
            tracing::debug!(%order, user = ?user.as_str(), "order placed");
            let location = [(LOCATION, format!("/orders/{order}"))];
            Ok((StatusCode::CREATED, location, Json(shown(&order, &user, &reply))))
        }
        Outcome::Held => {
            let problem = conflict("already-ordered", "The user has an order for this SKU already");
            Err(problem.member("order_id", format!("{sku}.{}", reply.order)))
        }
        Outcome::TurnOver => {
            let problem = Problem::new(StatusCode::FORBIDDEN, "turn-over", "The turn is over");
            let detail = "It has passed to the next in line. Enter again to be behind the others.";
            Err(problem.detail(detail))
        }
        _ => {
            let problem = Problem::new(StatusCode::GONE, "sold-out", "Sold out");
            let until = format!("Until GET /seckill/{sku} says `over`");
            Err(problem.detail(format!("{until}, what is not paid in time comes back.")))
        }
    }
}

async fn level(State(shop): State<Arc<Shop>>, path: PathText) -> Answer {
    let on_sale = shop.sku(path)?;
    let OnSale { sku, draw, .. } = on_sale;
    let level = on_sale.level()?;
    Ok(Json(json!({
        "mode": if draw.is_some() { "draw" } else { FIRST_COME },
        "commitment": draw.as_ref().map(Draw::commitment),
        "secret": shop.secret(draw.as_ref()),
        "entries": level.entries,
        "turns": level.turns,
        "paid": level.paid,
        "over": level.paid >= level.stock,
        "sku": sku,
        "stock": level.stock,
        "sold": level.sold,
        "remaining": level.left(),
        "opens_in_ms": shop.terms.opening.opens_in().map(whole_milliseconds),
    })))
}

/// Rounds up, so that a client that waits as long is not too early.
pub(crate) fn whole_milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Shows an order to its user. To another user it does not exist.
async fn order(State(shop): State<Arc<Shop>>, user: UserId, path: PathText) -> Answer {
    let id = order_id(path)?;
    let on_sale = shop.find(&id.sku).ok_or_else(unknown_order)?;
    on_sale.level()?;
    let reply = on_sale.call(Call::Entry { user: user.as_str() }).await?;
    if reply.order != id.uuid.to_string() {
        return Err(unknown_order());
    }
    Ok(Json(shown(&id, &user, &reply)))
}

fn shown(id: &OrderId, user: &UserId, reply: &Reply) -> Value {
    json!({
        "order_id": id.to_string(),
        "sku": id.sku,
        "user": user,
        "paid": reply.outcome == Outcome::Paid,
        "pay_in_ms": reply.until(reply.number).map(whole_milliseconds),
    })
}

/// What the payment provider sends.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Payment {
    payment_id: String,
}

/// Marks an order as paid. The provider may call again until it has an answer.
async fn pay(State(shop): State<Arc<Shop>>, path: PathText, body: WholeBody) -> Answer {
    let id = order_id(path).inspect_err(|_| shop.meter.count_payment(Some(Outcome::Unknown)))?;
    let payment = body.object().ok().map(|Payment { payment_id }| payment_id);
    let fits = |id: &String| (1..=LONGEST_PAYMENT_ID).contains(&id.len());
    let Some(payment) = payment.filter(fits) else {
        let title = "The body names no payment";
        let detail = "The body must be {\"payment_id\": \"...\"}, with 1 to 128 bytes.";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "bad-payment", title).detail(detail));
    };
    let Some(on_sale) = shop.find(&id.sku) else {
        // The provider calls again, and may reach a server that sells it.
        shop.meter.count_payment(None);
        let title = "This server does not sell the SKU of the order";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-on-sale", title)
            .retry_after(Duration::from_secs(10)));
    };
    let (order, is_real) = (id.uuid.to_string(), shop.keeps_refunds);
    let call = Call::Pay { order: &order, payment: &payment, is_real };
    let reply = on_sale.call(call).await;
    shop.meter.count_payment(reply.as_ref().ok().map(|reply| reply.outcome));
    let reply = reply.map_err(StockError::of_a_change)?;
    let problem = match reply.outcome {
        Outcome::Paid => return Ok(Json(json!({ "order_id": id.to_string(), "paid": true }))),
        Outcome::PaymentUsed => {
            let problem = conflict("payment-used", "The payment is of another order");
            return Err(problem.detail("Each order needs a payment with an id of its own."));
        }
        Outcome::AlreadyPaid => conflict("already-paid", "Another payment has paid the order"),
        Outcome::TooLate => conflict("paid-too-late", "The order was not paid in time"),
        // Redis may have lost it.
        _ => unknown_order(),
    };
    let detail = "The payment is recorded for a refund.";
    Err(if shop.keeps_refunds { problem.detail(detail) } else { problem })
}

fn conflict(kind: &str, title: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, kind, title)
}

fn order_id(path: PathText) -> Result<OrderId, Problem> {
    path.ok().and_then(|Path(text)| OrderId::parse(&text)).ok_or_else(unknown_order)
}

fn unknown_order() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-order", "No such order")
}

impl Shop {
    /// Finds the SKU of the path. A text that can't be a SKU is answered as an unknown one is.
    pub(crate) fn sku(&self, path: PathText) -> Result<&OnSale, Problem> {
        let sku = path.ok().and_then(|Path(text)| text.parse().ok());
        let title = "No such SKU is for sale";
        sku.and_then(|sku| self.find(&sku))
            .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "unknown-sku", title))
    }

    fn find(&self, sku: &Sku) -> Option<&OnSale> {
        self.stock.iter().find(|it| it.sku == *sku)
    }

    /// Returns the secret of a draw, which nobody may know before the opening.
    pub(crate) fn secret(&self, draw: Option<&Draw>) -> Option<String> {
        draw.filter(|_| self.terms.opening.opens_in().is_none()).map(Draw::secret)
    }
}
