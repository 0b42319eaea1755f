//! A flash sale behind a sliding window: five requests a minute for each user, whichever server
//! they reach, and a stock that is never oversold.
//!
//! ```text
//! cargo run --release --example seckill
//! cargo run --release --example seckill -- --redis redis://127.0.0.1:6379 --stock iphone=100
//! cargo run --release --example seckill -- --help
//! ```
//!
//! `load.sh`, beside this file, rushes two such servers and counts whether the promises held.

mod args;
mod opening;
mod order;
mod page;
#[cfg(test)]
mod parsers_proptest;
mod problem;
mod routes;
mod serve;
mod shutdown;
mod start;
mod stock;
mod user;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::start::StartError;

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
        // Else it panics wherever something is logged once nobody reads it, as in `2>&1 | head`.
        .log_internal_errors(false)
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
    let address = listener.local_addr().map_err(StartError::Address)?;
    let idle_timeout = args.idle_timeout.0;
    let app = start::app(args).await?;

    // Connections queue at the listener from `bind` on, so the line is true already.
    writeln!(std::io::stdout(), "listening on http://{address}").map_err(StartError::Announce)?;
    serve::serve(listener, app, idle_timeout, stop).await;
    tracing::info!("stopped");
    Ok(())
}
