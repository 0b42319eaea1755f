//! A gateway for text messages: quotas for the institution, the channel and the receiver of each
//! message, checked in one decision, behind a global token bucket.
//!
//! ```text
//! cargo run --release -p sms-gateway
//! cargo run --release -p sms-gateway -- --redis redis://127.0.0.1:6379
//! cargo run --release -p sms-gateway -- --help
//! ```

mod alerts;
#[cfg(test)]
mod app_tests;
mod args;
mod bucket;
mod controller;
mod downstream;
mod gateway;
mod levels;
mod message;
mod name;
mod policies;
mod problem;
mod routes;
mod share;
mod shared;
mod sum;
mod tally;
mod thresholds;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use tower_sliding_window::{Limiter, MemoryStore, Quota};

use crate::alerts::Alerts;
use crate::args::Args;
use crate::bucket::Bucket;
use crate::controller::Results;
use crate::downstream::Downstream;
use crate::gateway::Gateway;
use crate::levels::Levels;
use crate::policies::Policies;
use crate::routes::{App, routes};
use crate::shared::Shared;
use example_support::program::exit_code;
use example_support::server::Server;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::read())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let app = app(args).await?;
    server.announce("listening on")?;
    server.serve(app).await;
    Ok(())
}

/// Opens the stores, returns the app, and spawns the tasks that run beside the requests.
async fn app(args: Args) -> Result<Router, Box<dyn Error>> {
    let global = args.global;
    let levels = Arc::new(Levels::new(args.thresholds()));
    let redis = args.redis.connect().await?;

    let policies = match &redis {
        Some(redis) => {
            let shared = Shared::new(redis.store.commands(), &args.redis.prefix);
            Policies::shared(levels.clone(), global, shared)
                .await
                .map_err(|source| redis.unusable(source))?
        }
        None => Policies::alone(levels.clone(), global),
    };
    // Policies that were changed earlier, and are kept in Redis, replace those of the flags.
    let sum = levels.configured().sum();
    let burst = sum.burst_above(global);
    sum.check(global).map_err(|error| {
        format!(
            "{error}\n\
             hint: start with --global {}/1s or more, or lower --institution-limit or the limit of \
             an --institution; policies that were changed by PUT /policies are kept in Redis and \
             replace these flags",
            error.enough()
        )
    })?;
    if let Some(burst) = burst {
        tracing::warn!(
            "the levels may admit {burst} messages at once, and the bucket of --global {global} holds \
             fewer: the rest get 503. A longer window of the same rate, such as 6000/60s for \
             100/1s, holds more"
        );
    }

    let is_shared = redis.is_some();
    let limiter = match redis {
        Some(redis) => {
            tracing::info!(addresses = %redis.addresses, "windows and policies are kept in Redis");
            Limiter::new(Quota::per_second(1), redis.store)
        }
        None => {
            tracing::info!("windows and policies are kept in this process");
            Limiter::new(Quota::per_second(1), MemoryStore::new())
        }
    };
    let gateway = Arc::new(Gateway {
        limiter: limiter.failure_policy(args.on_failure),
        bucket: Bucket::new(global)?,
        levels,
        alerts: Alerts::new(args.bound),
        downstream: Downstream::new(args.conduct),
        results: Results::new(&args.targets),
    });
    let policies = Arc::new(policies);

    let (targets, adapted, watched) = (args.targets, args.adapt, gateway.clone());
    tokio::spawn(async move {
        tokio::join!(controller::run(targets, &watched, adapted), watched.alerts.run())
    });
    if is_shared {
        let policies = policies.clone();
        tokio::spawn(async move { policies.run().await });
    }
    Ok(routes(App { gateway, policies, idle_timeout: args.listen.idle_timeout }))
}
