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
mod names;
#[path = "../common/prefix.rs"]
mod prefix;
mod problem;
mod routes;
#[path = "../common/shutdown.rs"]
mod shutdown;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tower_sliding_window::moderation::{MuteEvent, SpeechMonitor};
use tower_sliding_window::{MemoryStore, RedisStore, StoreError};
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::routes::{Chat, routes};

/// How long Redis may take to answer. A message would rather wait than pass unjudged.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read();
    // Stdout carries only the line that says where the server listens.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .init();

    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), StartError> {
    // Before anything is announced, so that a signal right after that is not missed.
    let stop = shutdown::signals().map_err(StartError::Signals)?;
    let listen = args.listen;
    let listener =
        TcpListener::bind(listen).await.map_err(|source| StartError::Listen { listen, source })?;
    let address = listener.local_addr().map_err(StartError::Serve)?;
    let capacity = args.queue;
    let monitor = monitor(args).await?.on_mute(audit);
    let chat = Chat::new(monitor, capacity);

    // Connections queue at the listener from `bind` on, so the line is true already.
    writeln!(std::io::stdout(), "listening on http://{address}").map_err(StartError::Announce)?;
    serve(listener, routes(chat.clone()), stop).await.map_err(StartError::Serve)?;
    chat.finish().await;
    tracing::info!("stopped");
    Ok(())
}

async fn monitor(args: Args) -> Result<SpeechMonitor, StartError> {
    for rule in &args.rule {
        tracing::info!(%rule, "watching");
    }
    let Some(url) = args.redis else {
        tracing::info!("mutes are kept in this process");
        return Ok(SpeechMonitor::new(args.rule, MemoryStore::new()));
    };
    let store = RedisStore::builder().prefix(args.prefix.0).response_timeout(RESPONSE_TIMEOUT);
    let store = store.connect(url.as_str()).await.map_err(StartError::Redis)?;
    tracing::info!("mutes are kept in Redis");
    Ok(SpeechMonitor::new(args.rule, store))
}

/// Where a real chat writes its audit log. Users are named only to who asks for it.
fn audit(event: &MuteEvent) {
    let (rule, reason) = (event.mute.rule(), event.mute.reason());
    tracing::info!(%rule, %reason, lengthened = event.lengthened, "audit: muted");
    let user = String::from_utf8_lossy(event.sender.as_bytes());
    tracing::debug!(%user, %rule, "audit: muted");
}

async fn serve(listener: TcpListener, app: Router, stop: shutdown::Stop) -> std::io::Result<()> {
    let patience = stop.clone();
    tokio::select! {
        served = axum::serve(listener, app).with_graceful_shutdown(stop.asked()) => served,
        () = patience.over() => {
            tracing::warn!("some requests did not end in time and are cut off");
            Ok(())
        }
    }
}

/// Why the server does not run, and what to do about it.
///
/// No message shows the Redis URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(
        "can't listen on {listen}: {source}\n\
         hint: stop what listens there, or choose another address with --listen IP:PORT (port 0 \
         takes a free one)"
    )]
    Listen { listen: SocketAddr, source: std::io::Error },
    #[error(
        "can't use the Redis that --redis names: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], start a server with `redis-server`, or \
         leave --redis out to keep the mutes in this process"
    )]
    Redis(StoreError),
    #[error("can't print the address to stdout: {0}")]
    Announce(std::io::Error),
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't go on serving: {0}")]
    Serve(std::io::Error),
}
