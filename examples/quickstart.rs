//! Five requests a minute for each user, in front of one route of an axum application.
//!
//! ```text
//! cargo run --example quickstart
//! for i in 1 2 3 4 5 6; do curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders; done
//! ```

use std::time::Duration;

use axum::{Router, routing::post};
use tokio::net::TcpListener;
use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: five requests a minute for each user.
  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders";

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    // For several servers: RedisStore::connect("redis://127.0.0.1:6379").await
    let store = MemoryStore::new();
    let quota = Quota::new(5, Duration::from_secs(60));
    let limit = SlidingWindowLayer::new(quota, key::header("x-user-id"), store);
    let app = Router::new().route("/orders", post(async || "ordered\n")).layer(limit);

    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
