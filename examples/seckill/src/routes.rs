//! The server's routes, and what each of them does.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tower_sliding_window::store::Store;
use tower_sliding_window::{MemoryStore, SlidingWindowLayer, key};
use uuid::Uuid;

use crate::args::Args;
use crate::live::{Meter, count, mark_passed};
use crate::names::{OrderId, Sku, UserFrom, UserId};
use crate::opening::Opening;
use crate::pages;
use crate::policies::Limits;
use crate::stock::{Outcome, Stock, StockError};
use example_support::problem::{Problem, with_fallbacks};

/// What the handlers share.
pub(crate) struct Shop {
    pub(crate) stock: Stock,
    pub(crate) opening: Opening,
    pub(crate) skus: Vec<Sku>,
    pub(crate) user_from: UserFrom,
}

/// Puts the shop together. The meter counts the requests, if an operator can see the counts.
pub(crate) fn routes(
    args: &Args,
    shop: Arc<Shop>,
    limits: &Limits,
    meter: Option<Arc<Meter>>,
    windows: impl Store,
) -> Result<Router, Box<dyn Error>> {
    let address = args.proxies()?.map_or_else(key::peer_ip, key::client_ip);
    let user = key::extension::<UserId>;
    let mut limit = SlidingWindowLayer::new(limits.user()?, user(), windows);
    limit = limit.failure_policy(args.on_failure);
    if let Some(ip) = limits.ip() {
        limit = limit.rule(ip, address.clone());
    }
    // Kept in this process: a read that is refused costs Redis nothing, and one that is not costs it no
    // check.
    let reads = args.read_quota.clone().named("read");
    let mut read_limit = SlidingWindowLayer::new(reads, user(), MemoryStore::new());
    if let Some(ip) = args.read_ip_quota.clone() {
        read_limit = read_limit.rule(ip.named("read-ip"), address);
    }
    if let Some(meter) = meter.clone() {
        limit = limit.top_offenders(meter.offenders());
        limit = limit.on_decision(move |decision| meter.decided(decision));
    }
    // `route_layer` guards this route's own method only: neither other routes nor a 405 are
    // counted. The layer added last runs first.
    let mut orders = post(place_order);
    if meter.is_some() {
        orders = orders.route_layer(from_fn(mark_passed));
    }
    orders = orders.route_layer(limit).route_layer(from_fn_with_state(Arc::clone(&shop), enter));
    if let Some(meter) = meter {
        orders = orders.route_layer(from_fn_with_state(meter, count));
    }
    // A browser adds a cookie, and a page any query, to what it sends to another site. A header it
    // sends there only if that site allows it by CORS, which this server does not.
    if shop.user_from.place != "header" {
        orders = orders.route_layer(CsrfLayer::new().with_rejection_response(cross_site));
    }

    let identify = from_fn_with_state(Arc::clone(&shop), identify);
    let routes = Router::new()
        .route("/seckill/{sku}/orders", orders)
        .route("/seckill/{sku}", get(level))
        .route("/orders/{order_id}", get(order).route_layer(read_limit).route_layer(identify))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(Arc::clone(&shop));
    Ok(with_fallbacks(routes.merge(pages::shop(&shop.skus, &shop.user_from))))
}

/// Runs behind the layer, so the request counts whatever the response is. A client that hammers the
/// route before the sale opens has a full quota when it opens.
async fn place_order(
    State(shop): State<Arc<Shop>>,
    Extension(user): Extension<UserId>,
    path: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Value>), Problem> {
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
        Outcome::SoldOut => Err(sold_out(&sku)),
        Outcome::UnknownSku => Err(unknown_sku()),
    }
}

/// Puts the [`UserId`] into the request's extensions, or answers 401 or 400.
async fn identify(
    State(shop): State<Arc<Shop>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let user = shop.user_from.identify(&parts)?;
    parts.extensions.insert(user);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Identifies the user, and refuses orders of a sold-out SKU in front of the limit. There is nothing left
/// to guard, and most orders of a sale come after its end: none of them costs Redis a check.
async fn enter(
    State(shop): State<Arc<Shop>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let user = shop.user_from.identify(&parts)?;
    if shop.opening.check().is_ok()
        && let Ok(sku) = sku(path)
        && shop.stock.is_sold_out_to(&sku, &user)
    {
        return Err(sold_out(&sku));
    }
    parts.extensions.insert(user);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

fn cross_site(_: ProtectionError) -> Response {
    let title = "The order was sent by a page of another site";
    Problem::new(StatusCode::FORBIDDEN, "cross-site", title)
        .detail("Origin has to name this server's host, or Sec-Fetch-Site has to be same-origin.")
        .into_response()
}

async fn level(
    State(shop): State<Arc<Shop>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let sku = sku(path)?;
    let level = shop.stock.level(&sku).await?.ok_or_else(unknown_sku)?;
    Ok(Json(json!({
        "sku": sku,
        "stock": level.stock,
        "sold": level.sold,
        "remaining": level.stock.saturating_sub(level.sold),
        "opens_in_ms": shop.opening.opens_in().map(whole_milliseconds),
    })))
}

/// Rounds up, so that a client that waits as long is not too early.
fn whole_milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Shows an order to its user. To another user it does not exist.
async fn order(
    State(shop): State<Arc<Shop>>,
    Extension(user): Extension<UserId>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let id: Option<OrderId> = path.ok().and_then(|Path(text)| OrderId::parse(&text));
    let id = id.ok_or_else(unknown_order)?;
    let buyer = shop.stock.buyer(&id).await?;
    if buyer.as_ref() != Some(&user) {
        return Err(unknown_order());
    }
    Ok(Json(shown(&id, &user)))
}

fn shown(id: &OrderId, user: &UserId) -> Value {
    json!({ "order_id": id.to_string(), "sku": id.sku, "user": user })
}

/// Reads the SKU of the path. A text that can't be one is answered as an unknown SKU is.
fn sku(path: Result<Path<String>, PathRejection>) -> Result<Sku, Problem> {
    path.ok().and_then(|Path(text)| text.parse().ok()).ok_or_else(unknown_sku)
}

fn sold_out(sku: &Sku) -> Problem {
    Problem::new(StatusCode::GONE, "sold-out", "Sold out")
        .detail(format!("Every {sku} has been sold."))
}

fn unknown_sku() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-sku", "No such SKU is for sale")
}

fn unknown_order() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-order", "No such order")
}
