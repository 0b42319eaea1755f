//! A gateway for text messages: quotas for the institution, the channel, the destination and the receiver
//! of each message, checked in one decision, and a token bucket behind them. See README.md.

mod alerts;
mod args;
mod bucket;
mod downstream;
mod gateway;
mod levels;
mod message;
mod routes;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use axum::Router;
use clap::Parser;
use example_support::admin::{Admin, serve};
use example_support::logs::exit_code;
use example_support::policies::SharedPolicies;
use example_support::server::{PATIENCE, Server};
use example_support::webhook::Webhook;
use tokio::sync::watch;
use tower_sliding_window::{Limiter, MemoryStore, Quota};

use crate::alerts::Refusals;
use crate::args::Args;
use crate::bucket::Bucket;
use crate::downstream::Downstream;
use crate::gateway::Gateway;
use crate::levels::{Document, Levels};

/// The policies without `--policies`.
const POLICIES: &str = include_str!("../policies.json");

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::parse())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?.patience(args.hold + PATIENCE);
    let admin = Admin::bind(&args.admin, &server).await?;
    let webhook = Webhook::new(&args.webhook)?;
    let document = document(args.policies.as_deref()).map_err(|error| {
        let file = args.policies.as_deref().unwrap_or("policies.json".as_ref()).display();
        format!("can't use the policies of {file}: {error}\nhint: --help shows such a file")
    })?;
    let (clients, operator, gateway) =
        apps(args, document, server.max_connections, server.stopping(), &webhook).await?;

    serve(server, clients, admin, operator, Router::new()).await?;
    gateway.finish().await;
    gateway.refusals.look(&webhook, true);
    webhook.flush().await;
    Ok(())
}

/// Reads the file of `--policies`.
fn document(file: Option<&Path>) -> Result<Document, Box<dyn Error>> {
    let text = file.map_or(Ok(POLICIES.to_owned()), std::fs::read_to_string)?;
    let document: Document = serde_json::from_str(&text)?;
    document.read()?;
    Ok(document)
}

/// Opens the stores, puts the apps of the clients and of the operator together, and spawns the tasks that
/// run beside the requests.
async fn apps(
    args: Args,
    document: Document,
    connections: usize,
    stopping: watch::Receiver<bool>,
    webhook: &Webhook,
) -> Result<(Router, Router, Arc<Gateway>), Box<dyn Error>> {
    let levels = Levels::new(&document)?;
    let (limiter, policies) = match args.redis.connect().await? {
        Some(redis) => {
            tracing::info!(addresses = %redis.addresses, "windows and policies are kept in Redis");
            let shared = Some((redis.store.commands(), &*args.redis.prefix));
            let policies = SharedPolicies::new(levels, document, shared);
            policies.look().await.map_err(|source| redis.unusable(source))?;
            (Limiter::new(Quota::per_second(1), redis.store), policies)
        }
        None => {
            tracing::info!("windows and policies are kept in this process");
            // Two logs of an hour for each message to another receiver: 500 messages a second. Up to 1 GB.
            let store = MemoryStore::with_capacity(4_000_000);
            let limiter = Limiter::new(Quota::per_second(1), store);
            (limiter, SharedPolicies::new(levels, document, None))
        }
    };
    let hold_messages = (args.hold_messages.get() as usize).min((connections / 2).max(1));
    let gateway = Arc::new(Gateway {
        limiter: limiter.failure_policy(args.on_failure).max_waiters(hold_messages),
        policies,
        bucket: Bucket::new(args.global),
        downstream: Downstream::new(),
        refusals: Refusals::new(args.bound),
        hold: args.hold,
        hold_messages,
        places: Mutex::default(),
        stopping,
        under_way: watch::Sender::default(),
    });
    let (tasks, webhook) = (gateway.clone(), webhook.clone());
    tokio::spawn(async move {
        let Gateway { policies, downstream, refusals, .. } = &*tasks;
        let control = downstream.control(policies.set(), args.adapt_floor);
        tokio::join!(control, refusals.watch(&webhook), policies.follow());
    });
    Ok((routes::clients(gateway.clone()), routes::operator(gateway.clone()), gateway))
}
