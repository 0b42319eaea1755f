//! A chat that mutes spammers in silence: whoever repeats a message, or writes to one stranger
//! after another, goes on talking and is heard by nobody else.
//!
//! ```text
//! cargo run --release --example chat_guard
//! cargo run --release --example chat_guard -- --redis redis://127.0.0.1:6379
//! cargo run --release --example chat_guard -- --help
//! ```
//!
//! Mutes are shared by all servers with one Redis. Messages themselves stay in the process that
//! took them: a real chat has a place for them already.

mod args;
mod board;
#[path = "../common/mod.rs"]
mod common;
mod names;
mod problem;
mod routes;

use std::process::ExitCode;

use clap::Parser;
use tower_sliding_window::MemoryStore;
use tower_sliding_window::moderation::{MuteEvent, SpeechMonitor};

use crate::args::Args;
use crate::common::redis::OpenError;
use crate::common::server::{Server, ServerError, exit_code, log_to_stderr};
use crate::routes::{Chat, routes};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    log_to_stderr("info");
    exit_code(run(args).await)
}

async fn run(args: Args) -> Result<(), StartError> {
    let server = Server::bind(&args.listen).await?;
    let capacity = args.queue;
    let monitor = monitor(args).await?.on_mute(audit);
    let chat = Chat::new(monitor, capacity);
    server.announce("listening on")?;
    server.serve(routes(chat.clone())).await;
    chat.finish().await;
    tracing::info!("stopped");
    Ok(())
}

async fn monitor(args: Args) -> Result<SpeechMonitor, OpenError> {
    for rule in &args.rule {
        tracing::info!(%rule, "watching");
    }
    let Some(redis) = args.redis.redis()? else {
        tracing::info!("mutes are kept in this process");
        return Ok(SpeechMonitor::new(args.rule, MemoryStore::new()));
    };
    let store = redis.windows(&args.prefix).await?;
    tracing::info!(addresses = %redis.addresses, "mutes are kept in Redis");
    Ok(SpeechMonitor::new(args.rule, store))
}

/// Where a real chat writes its audit log. Users are named only to who asks for it.
fn audit(event: &MuteEvent) {
    let (rule, reason) = (event.mute.rule(), event.mute.reason());
    tracing::info!(%rule, %reason, lengthened = event.lengthened, "audit: muted");
    let user = String::from_utf8_lossy(event.sender.as_bytes());
    tracing::debug!(%user, %rule, "audit: muted");
}

/// Why the server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error(transparent)]
    Server(#[from] ServerError),
}
