//! A gateway for text messages: windows for the institution, the channel and the receiver of each
//! message, decided on as one, behind a global token bucket.
//!
//! ```text
//! cargo run --release --example sms_gateway
//! cargo run --release --example sms_gateway -- --redis redis://127.0.0.1:6379
//! cargo run --release --example sms_gateway -- --help
//! ```

mod alerts;
mod args;
mod bucket;
#[path = "../common/mod.rs"]
mod common;
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
use crate::common::server::{Server, exit_code, log_to_stderr};
use crate::start::StartError;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read();
    log_to_stderr("info");
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
