//! The server's routes, and what each of them does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_sliding_window::store::Store;
use tower_sliding_window::{KeyExtractor, MemoryStore, Policy, Quota, SlidingWindowLayer, key};
use uuid::Uuid;

use crate::args::Args;
use crate::live::Meter;
use crate::names::{OrderId, Sku, UserId};
use crate::opening::Opening;
use crate::pages;
use crate::policies::Limits;
use crate::stock::{Outcome, Stock, StockError};
use example_support::problem::{Problem, with_fallbacks};

/// How often a user, and an address, may look up orders on each server.
const READS: Quota = Quota::per_minute(60);
const READS_OF_ADDRESS: Quota = Quota::per_minute(1000);

/// What the handlers share.
pub(crate) struct Shop {
    pub(crate) stock: Stock,
    pub(crate) opening: Opening,
    pub(crate) skus: Vec<Sku>,
    pub(crate) user: Arc<dyn KeyExtractor>,
    /// Counts what comes of orders, if an operator can see the counts.
    pub(crate) meter: Option<Arc<Meter>>,
}

/// Puts the shop together.
pub(crate) fn routes(args: &Args, shop: Arc<Shop>, limits: &Limits, windows: impl Store) -> Router {
    let address = args.trust_proxy.clone().map_or_else(key::peer_ip, key::client_ip);
    let names = Arc::clone(&shop.user);
    let user = move |parts: &Parts| names.extract(parts);
    // Two rules, one decision: a request counts for its user and for its address, or for neither.
    let mut limit = SlidingWindowLayer::new(limits.user(), user.clone(), windows);
    limit = limit.failure_policy(args.on_failure);
    if let Some(ip) = limits.ip() {
        limit = limit.rule(ip, address.clone());
    }
    if let Some(meter) = &shop.meter {
        limit = meter.watch(limit);
    }
    // Kept in this process: a read that is refused costs Redis nothing, and one that is not costs it no
    // check.
    let [of_user, of_address] = [("read", READS), ("read-ip", READS_OF_ADDRESS)]
        .map(|(name, quota)| Policy::new(name).quota(quota));
    let read_limit = SlidingWindowLayer::new(of_user, user, MemoryStore::new());
    let read_limit = read_limit.rule(of_address, address);

    let routes = Router::new()
        // `route_layer` guards this route's own method only: neither other routes nor a 405 are
        // counted.
        .route("/seckill/{sku}/orders", post(place_order).route_layer(limit))
        .route("/seckill/{sku}", get(level))
        .route("/orders/{order_id}", get(order).route_layer(read_limit))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(Arc::clone(&shop));
    with_fallbacks(routes.merge(pages::shop(&shop.skus)))
}

type PathText = Result<Path<String>, PathRejection>;
type Created = (StatusCode, [(HeaderName, String); 1], Json<Value>);

async fn place_order(
    State(shop): State<Arc<Shop>>,
    user: UserId,
    path: PathText,
) -> Result<Created, Problem> {
    let placed = place(&shop, user, path).await;
    if let Some(meter) = &shop.meter {
        meter.count(placed.as_ref().map_or_else(Problem::status, |(status, ..)| *status));
    }
    placed
}

/// Runs behind the layer, so the request counts whatever the response is. A client that hammers the
/// route before the sale opens has a full quota when it opens.
async fn place(shop: &Shop, user: UserId, path: PathText) -> Result<Created, Problem> {
    shop.opening.check()?;
    let sku = sku(path)?;
    let order_id = OrderId { sku: sku.clone(), uuid: Uuid::new_v4() };
    match shop.stock.place(&order_id, &user).await.map_err(StockError::of_an_order)? {
        Outcome::Placed => {
            tracing::debug!(%order_id, user = ?user.as_str(), "order placed");
            let location = [(LOCATION, format!("/orders/{order_id}"))];
            Ok((StatusCode::CREATED, location, Json(shown(&order_id, &user))))
        }
        Outcome::AlreadyOrdered(uuid) => {
            let title = "The user has an order for this SKU already";
            let order_id = OrderId { sku, uuid }.to_string();
            Err(Problem::new(StatusCode::CONFLICT, "already-ordered", title)
                .member("order_id", order_id))
        }
        Outcome::SoldOut => Err(Problem::new(StatusCode::GONE, "sold-out", "Sold out")
            .detail(format!("Every {sku} has been sold."))),
        Outcome::UnknownSku => Err(unknown_sku()),
    }
}

async fn level(State(shop): State<Arc<Shop>>, path: PathText) -> Result<Json<Value>, Problem> {
    let sku = sku(path)?;
    let level = shop.stock.level(&sku)?.ok_or_else(unknown_sku)?;
    Ok(Json(json!({
        "sku": sku,
        "stock": level.stock,
        "sold": level.sold,
        "remaining": level.stock.saturating_sub(level.sold),
        "opens_in_ms": shop.opening.opens_in().map(whole_milliseconds),
    })))
}

/// Rounds up, so that a client that waits as long is not too early.
pub(crate) fn whole_milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Shows an order to its user. To another user it does not exist.
async fn order(
    State(shop): State<Arc<Shop>>,
    user: UserId,
    path: PathText,
) -> Result<Json<Value>, Problem> {
    let id: Option<OrderId> = path.ok().and_then(|Path(text)| OrderId::parse(&text));
    let unknown_order = || Problem::new(StatusCode::NOT_FOUND, "unknown-order", "No such order");
    let id = id.ok_or_else(unknown_order)?;
    if shop.stock.buyer(&id).await?.as_ref() != Some(&user) {
        return Err(unknown_order());
    }
    Ok(Json(shown(&id, &user)))
}

fn shown(id: &OrderId, user: &UserId) -> Value {
    json!({ "order_id": id.to_string(), "sku": id.sku, "user": user })
}

/// Reads the SKU of the path. A text that can't be one is answered as an unknown SKU is.
fn sku(path: PathText) -> Result<Sku, Problem> {
    path.ok().and_then(|Path(text)| text.parse().ok()).ok_or_else(unknown_sku)
}

fn unknown_sku() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-sku", "No such SKU is for sale")
}
