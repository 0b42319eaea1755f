//! Several quotas and rules in one decision, a 429 of one's own, and CORS.
//!
//! ```text
//! cargo run --example several_rules
//! for i in 1 2 3; do curl -i -X POST -H 'origin: https://shop.example' -H 'x-user-id: alice' \
//!   http://127.0.0.1:3000/orders; done
//! ```

use std::net::SocketAddr;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method, Response};
use axum::{Router, routing::post};
use tokio::net::TcpListener;
use tower_http::cors::CorsLayer;
use tower_sliding_window::{MemoryStore, Policy, Quota, Rejection, SlidingWindowLayer, key};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: two requests a second and five a minute for each user,
and a hundred a minute for each address.
  curl -i -X POST -H 'origin: https://shop.example' -H 'x-user-id: alice' \\
    http://127.0.0.1:3000/orders";

/// The body in place of the default `application/problem+json`. The layer adds `Retry-After`,
/// `RateLimit` and `RateLimit-Policy`.
fn too_many(rejection: &Rejection) -> Response<String> {
    let Rejection::Denied(denied) = rejection else {
        // A missing user or a failed store: as by default.
        return rejection.to_response().map(|body| String::from_utf8_lossy(&body).into_owned());
    };
    let (rules, wait) = (denied.violated().collect::<Vec<_>>(), denied.retry_after().as_secs_f64());
    let mut response = Response::new(format!("{{\"full\":{rules:?},\"retry_after\":{wait:.3}}}\n"));
    *response.status_mut() = rejection.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
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
