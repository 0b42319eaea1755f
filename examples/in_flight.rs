//! At most two exports of a tenant at a time, over all servers. A background job shares the places.
//!
//! An export counts until its body is over: until the last frame was sent, or the client has hung up.
//!
//! ```text
//! cargo run --example in_flight
//! ```

use std::io;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::{Router, routing::get};
use http_body_util::{BodyExt, channel::Channel};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Asks a service for slow exports, at most two of a tenant at a time: a third export is refused, a
client hangs up, and a background job takes its place. Takes no options.";

/// A line every 50 ms, for a second.
async fn export() -> Body {
    let (mut lines, body) = Channel::<Bytes, io::Error>::new(1);
    tokio::spawn(async move {
        for number in 1..=20 {
            sleep(Duration::from_millis(50)).await;
            if lines.send_data(format!("row {number}\n").into()).await.is_err() {
                return; // the client has hung up
            }
        }
    });
    Body::new(body)
}

/// Asks for an export, as a client does, and returns the body of the response. To drop it is to hang up.
async fn begin(app: &Router, tenant: &str) -> Body {
    let request = Request::get("/export").header("x-tenant", tenant).body(Body::empty());
    let response = app.clone().oneshot(request.expect("the parts are valid")).await;
    let response = response.unwrap_or_else(|never| match never {});
    println!("export of {tenant}: {}", response.status());
    // A denial has no `retry-after`: nobody knows when an export will be over.
    for name in ["ratelimit-policy", "retry-after"] {
        if let Some(value) = response.headers().get(name) {
            println!("  {name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
    }
    response.into_body()
}

async fn read_to_end(export: Body) -> Result<(), axum::Error> {
    export.collect().await?;
    println!("an export of acme has ended");
    Ok(())
}

/// A job takes a place in the same log, and gives it back when the permit is dropped.
async fn report(exports: Limiter) {
    let began = Instant::now();
    match exports.acquire("acme", Duration::from_secs(10)).await {
        Ok(_permit) => {
            println!("the report of acme begins after {:?}", began.elapsed());
            sleep(Duration::from_millis(200)).await;
            println!("the report of acme has ended");
        }
        Err(error) => eprintln!("error: no report of acme: {error}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    // For several servers: RedisStore::connect("redis://127.0.0.1:6379").await
    let store = MemoryStore::new();
    // The window is the lease. It is renewed while an export runs, for hours if need be. A server that
    // dies does not renew its leases: its places are free 30 seconds later.
    let exports = Policy::new("exports").quota(Quota::new(2, Duration::from_secs(30))).in_flight();
    let limiter = Limiter::new(exports.clone(), store.clone());
    let limit = SlidingWindowLayer::new(exports, key::header("x-tenant"), store);
    let app = Router::new().route("/export", get(export)).layer(limit);

    let (first, second) = (begin(&app, "acme").await, begin(&app, "acme").await);
    drop(begin(&app, "acme").await); // refused
    drop(begin(&app, "zenith").await);
    let report = tokio::spawn(report(limiter));
    println!("a client of acme hangs up");
    drop(first);
    report.await?;
    read_to_end(second).await?;
    read_to_end(begin(&app, "acme").await).await?;
    Ok(())
}
