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
use tokio::net::TcpListener;
use tower_sliding_window::{
    FailurePolicy, Policy, Quota, RedisServers, RedisStore, SlidingWindowLayer, key,
};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: five requests a minute for each user, on all servers
with the same Redis together.

  redis_servers [OPTIONS] URL...   several URLs are the nodes of a Cluster
  --sentinel NAME                  the URLs are Sentinels, and this is what they call the master
  --failure POLICY                 what decides while Redis does not answer:
      local    this process alone, with what it knows (default)
      local:3  this process, with a third of each quota
      open     all requests pass
      closed   503 with Retry-After

  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders";

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Error> {
    let (mut urls, mut master, mut failure) = (Vec::new(), None, FailurePolicy::default());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--sentinel" => master = Some(args.next().ok_or("--sentinel needs a name")?),
            "--failure" => failure = args.next().ok_or("--failure needs a policy")?.parse()?,
            "-h" | "--help" => {
                println!("{HELP}");
                return Ok(());
            }
            url => urls.push(url.to_owned()),
        }
    }
    let servers = match (&urls[..], master) {
        ([], _) => return Err("no URL is given; see --help".into()),
        (_, Some(master)) => RedisServers::sentinel(urls, master)?,
        ([url], None) => RedisServers::one(url.as_str())?,
        (_, None) => RedisServers::cluster(urls)?,
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
    println!("{HELP}\n\nThis is start number {started}.");

    let user = Policy::new("user").quota(Quota::per_minute(5));
    let limit =
        SlidingWindowLayer::new(user, key::header("x-user-id"), store).failure_policy(failure);
    let app = Router::new().route("/orders", post(async || "ordered\n")).layer(limit);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
