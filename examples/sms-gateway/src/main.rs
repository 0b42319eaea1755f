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
mod start;
mod sum;
mod tally;
mod thresholds;

use std::process::ExitCode;

use crate::args::Args;
use crate::start::StartError;
use example_support::server::{Server, exit_code, log_to_stderr};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read();
    log_to_stderr();
    exit_code(run(args).await)
}

async fn run(args: Args) -> Result<(), StartError> {
    let server = Server::bind(&args.listen).await?;
    let app = start::app(args).await?;
    server.announce("listening on")?;
    server.serve(app).await;
    tracing::info!("stopped");
    Ok(())
}
