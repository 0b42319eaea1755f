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

mod args;
mod board;
mod names;
mod routes;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use tower_sliding_window::MemoryStore;
use tower_sliding_window::moderation::{MuteEvent, SpeechMonitor};

use crate::args::Args;
use crate::routes::{Chat, routes};
use example_support::program::exit_code;
use example_support::redis::OpenError;
use example_support::server::Server;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::parse())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let capacity = args.queue;
    let monitor = monitor(args).await?.on_mute(audit);
    let chat = Chat::new(monitor, capacity);
    server.announce("listening on")?;
    server.serve(routes(chat.clone())).await;
    chat.finish().await;
    Ok(())
}

async fn monitor(args: Args) -> Result<SpeechMonitor, OpenError> {
    for rule in &args.rule {
        tracing::info!(%rule, "watching");
    }
    let Some(redis) = args.redis.connect().await? else {
        tracing::info!("mutes are kept in this process");
        return Ok(SpeechMonitor::new(args.rule, MemoryStore::new()));
    };
    tracing::info!(addresses = %redis.addresses, "mutes are kept in Redis");
    Ok(SpeechMonitor::new(args.rule, redis.store))
}

/// Where a real chat writes its audit log. User ids appear at the level debug only.
fn audit(event: &MuteEvent) {
    let (rule, reason) = (event.mute.rule(), event.mute.reason());
    tracing::info!(%rule, %reason, lengthened = event.lengthened, "audit: muted");
    let user = String::from_utf8_lossy(event.sender.as_bytes());
    tracing::debug!(%user, %rule, "audit: muted");
}
