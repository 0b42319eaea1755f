//! A gateway for text messages: quotas for the institution, the channel, the destination and the receiver
//! of each message, checked in one decision, and a token bucket behind them.
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
mod document;
mod downstream;
mod entry;
mod gateway;
mod hold;
mod levels;
mod message;
mod name;
mod operator;
mod parts;
mod policies;
mod problem;
mod refusals;
mod routes;
mod share;
mod sum;
mod tally;
mod thresholds;

use std::error::Error;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;
use tokio::time::timeout;
use tower_sliding_window::{Limiter, MemoryStore, Quota};

use crate::alerts::Alerts;
use crate::args::Args;
use crate::bucket::Bucket;
use crate::controller::Results;
use crate::document::Document;
use crate::downstream::Downstream;
use crate::gateway::Gateway;
use crate::hold::Hold;
use crate::levels::Levels;
use crate::operator::Operation;
use crate::policies::Policies;
use crate::refusals::Refusals;
use crate::thresholds::Thresholds;
use example_support::admin::Admin;
use example_support::policies::{PolicyFile, Shared};
use example_support::program::exit_code;
use example_support::server::Server;
use example_support::webhook::Webhook;

/// How long alerts may take to reach the webhook once the server has stopped.
const LAST_ALERTS: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::read())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let webhook = Webhook::new(&args.webhook)?;
    let apps = apps(args, server.stopping(), webhook.clone()).await?;

    server.announce("listening on")?;
    if let Some(admin) = &admin {
        admin.announce()?;
    }
    let serve_admin = async {
        if let Some(admin) = admin {
            admin.serve(apps.operator).await;
        }
    };
    tokio::join!(server.serve(apps.clients), serve_admin);
    if timeout(LAST_ALERTS, webhook.flush()).await.is_err() {
        tracing::warn!("some alerts did not reach the webhook in time");
    }
    Ok(())
}

/// The routes of the clients, and those of the admin listener.
struct Apps {
    clients: Router,
    operator: Router,
}

/// Opens the stores, puts the apps together, and spawns the tasks that run beside the requests.
async fn apps(
    args: Args,
    // Becomes true when the server is asked to stop, so that no message waits any longer.
    stopping: watch::Receiver<bool>,
    webhook: Webhook,
) -> Result<Apps, Box<dyn Error>> {
    let (global, on_failure) = (args.global(), args.on_failure());
    let thresholds = match &args.policies {
        Some(file) => file_thresholds(file).map_err(|error| file.unusable(error))?,
        None => args.thresholds(),
    };
    let reloads = args.policies.as_ref().map(PolicyFile::reloads).transpose()?;
    let levels = Arc::new(Levels::new(thresholds, args.institution_share, global.each));
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
    policies.check_sum()?;

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
        limiter: limiter.failure_policy(on_failure),
        bucket: Bucket::new(global.each)?,
        levels,
        hold: Hold::new(args.hold, stopping),
        refusals: Refusals::new(args.bound.alert_window),
        downstream: Downstream::new(args.conduct),
        results: Results::new(&args.targets),
    });
    let (policies, alerts) = (Arc::new(policies), Arc::new(Alerts::new(args.bound)));

    let (targets, adapted, watched) = (args.targets, args.adapt, gateway.clone());
    tokio::spawn(async move { controller::run(targets, &watched, adapted).await });
    let (watching, watched) = (alerts.clone(), gateway.clone());
    tokio::spawn(async move { watching.run(&watched.refusals, &webhook).await });
    if is_shared {
        let policies = policies.clone();
        tokio::spawn(async move { policies.run().await });
    }
    if let Some(reloads) = reloads {
        tokio::spawn(policies.clone().follow(reloads));
    }
    let clients = routes::routes(gateway.clone());
    Ok(Apps { clients, operator: operator::routes(Operation { gateway, policies, alerts }) })
}

fn file_thresholds(file: &PolicyFile) -> Result<Thresholds, Box<dyn Error>> {
    Ok(file.read::<Document>()?.try_into()?)
}
