//! A chat that mutes spammers silently. A user that repeats a message, or writes to many strangers,
//! still sees a success for each message, but no other user sees the messages.
//!
//! ```text
//! cargo run --release -p chat-guard
//! cargo run --release -p chat-guard -- --redis redis://127.0.0.1:6379
//! cargo run --release -p chat-guard -- --help
//! ```
//!
//! All servers with one Redis share the mutes. The messages themselves stay in the process that
//! received them: a real chat stores them elsewhere already.

mod admin;
mod args;
mod audit;
mod board;
mod checks;
mod history;
mod names;
mod routes;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tower_sliding_window::MemoryStore;
use tower_sliding_window::moderation::SpeechMonitor;

use crate::args::Args;
use crate::checks::Checks;
use crate::routes::routes;
use example_support::admin::Admin;
use example_support::program::exit_code;
use example_support::server::Server;
use example_support::webhook::Webhook;

/// How long the alerts that wait at the end may take.
const LAST_ALERTS: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::parse())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let webhook = Webhook::new(&args.webhook)?;
    let monitor = monitor(&args).await?.exempt(&args.exempt).first_mutes(args.first_mutes.clone());
    let monitor = monitor.on_mute(audit::hook(webhook.clone()));
    let checks = Checks::new(monitor.clone());

    server.announce("listening on")?;
    if let Some(admin) = &admin {
        admin.announce()?;
    }
    let serve_admin = async {
        if let Some(admin) = admin {
            admin.serve(admin::routes(monitor, checks.clone())).await;
        }
    };
    tokio::join!(server.serve(routes(checks.clone(), args.quota)), serve_admin);
    checks.finish().await;
    // What is left then is lost.
    let _ = tokio::time::timeout(LAST_ALERTS, webhook.flush()).await;
    Ok(())
}

async fn monitor(args: &Args) -> Result<SpeechMonitor, Box<dyn Error>> {
    let rules = args.rules()?;
    for rule in &rules {
        tracing::info!(%rule, "watching");
    }
    let Some(redis) = args.redis.connect().await? else {
        tracing::info!("mutes are kept in this process");
        return Ok(SpeechMonitor::new(rules, MemoryStore::new()));
    };
    tracing::info!(addresses = %redis.addresses, "mutes are kept in Redis");
    Ok(SpeechMonitor::new(rules, redis.store))
}
