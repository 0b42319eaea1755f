//! A store on one Redis, on the master that Sentinels name, or on a Cluster, and what decides while
//! it does not answer.
//!
//! ```text
//! redis-server --port 6379 &
//! cargo run --example redis_servers -- redis://127.0.0.1:6379
//! cargo run --example redis_servers -- --failure closed --sentinel shop redis://10.0.0.1:26379
//! ```

use std::time::Duration;

use axum::{Router, routing::post};
use clap::Parser;
use tokio::net::TcpListener;
use tower_sliding_window::{
    FailurePolicy, Policy, Quota, RedisServers, RedisStore, SlidingWindowLayer, key,
};

/// Serves POST /orders on http://127.0.0.1:3000: five requests a minute for each user, on all servers
/// with the same Redis together.
#[derive(Parser)]
#[command(after_help = TRY)]
struct Args {
    #[arg(required = true, help = "Several are the nodes of a Cluster")]
    url: Vec<String>,
    #[arg(long, help = "The URLs are Sentinels, and this is what they call the master")]
    sentinel: Option<String>,
    /// What decides while Redis does not answer: `local` (this process alone, with what it knows), `local:3` (with a
    /// third of each quota), `open` (all requests pass) or `closed` (503 with Retry-After)
    #[arg(long, default_value = "local")]
    failure: FailurePolicy,
}

const TRY: &str = "curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders";

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    if let Err(error) = run(Args::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn run(args: Args) -> Result<(), Error> {
    let servers = match (&args.url[..], args.sentinel) {
        (urls, Some(master)) => RedisServers::sentinel(urls, master)?,
        ([url], None) => RedisServers::one(url.as_str())?,
        (urls, None) => RedisServers::cluster(urls)?,
    };
    let store = RedisStore::builder()
        .prefix("orders")
        // After so long without any reply, Redis counts as dead.
        .response_timeout(Duration::from_millis(200))
        .connect(servers)
        .await?;

    // The application's own commands share the connection and its circuit breaker.
    let commands = store.commands();
    let started: u64 = commands.query(redis::cmd("INCR").arg("orders:started")).await?;
    println!("This is start number {started}. Try it:\n  {TRY}");

    let user = Policy::new("user").quota(Quota::per_minute(5));
    let limit =
        SlidingWindowLayer::new(user, key::header("x-user-id"), store).failure_policy(args.failure);
    let app = Router::new().route("/orders", post(async || "ordered\n")).layer(limit);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
