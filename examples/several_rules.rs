//! Several quotas and rules in one decision, a 429 of one's own, and CORS.
//!
//! ```text
//! cargo run --example several_rules
//! for i in 1 2 3; do curl -i -X POST -H 'origin: https://shop.example' -H 'x-user-id: alice' \
//!   http://127.0.0.1:3000/orders; done
//! ```

use std::net::SocketAddr;

use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use serde_json::json;
use tokio::net::TcpListener;
use tower_http::cors::CorsLayer;
use tower_sliding_window::{
    MemoryStore, Policy, Quota, RateLimitHeaders, Rejection, SlidingWindowLayer, key,
};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: two requests a second and five a minute for each user,
and a hundred a minute for each address.
  curl -i -X POST -H 'origin: https://shop.example' -H 'x-user-id: alice' \\
    http://127.0.0.1:3000/orders";

/// The response in place of the default `application/problem+json`. The layer adds `Retry-After` and
/// the fields that show the quotas.
fn too_many(request: &Parts, rejection: &Rejection) -> Response {
    let (Rejection::Denied(denied), Some(wait)) = (rejection, rejection.retry_after()) else {
        // A missing user or a failed store: as by default.
        return rejection.to_response().into_response();
    };
    let body = json!({
        "path": request.uri.path(),
        "full": denied.violated().collect::<Vec<_>>(),
        "retry_after": wait.as_secs_f64(),
    });
    (rejection.status(), Json(body)).into_response()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let user = Policy::new("user").quota(Quota::per_second(2)).quota(Quota::per_minute(5));
    let address = Policy::new("address").quota(Quota::per_minute(100));
    // A request counts under all rules or, when one is full, under none.
    let limit = SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new())
        .rule(address, key::peer_ip())
        // `RateLimit` and the older `X-RateLimit-*`, in every response.
        .headers(RateLimitHeaders::Both)
        .headers_on_success(true)
        .on_rejection(too_many);

    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static("https://shop.example"))
        .allow_methods([Method::POST])
        .allow_headers([HeaderName::from_static("x-user-id")])
        // A script in a browser reads only the headers that are named here.
        .expose_headers([RETRY_AFTER, HeaderName::from_static("ratelimit")]);

    // The layer added last runs first. So CORS answers preflight requests before they are counted,
    // and adds its headers to a 429 too.
    let app = Router::new().route("/orders", post(async || "ordered\n")).layer(limit).layer(cors);
    // `key::peer_ip` needs the address of the client.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
