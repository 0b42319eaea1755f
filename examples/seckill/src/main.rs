//! A flash sale behind a sliding window: five requests a minute for each user on all servers
//! together, and a stock that is never oversold.
//!
//! ```text
//! cargo run --release -p seckill
//! cargo run --release -p seckill -- --redis redis://127.0.0.1:6379 --stock iphone=100
//! cargo run --release -p seckill -- --help
//! ```

mod admin;
mod args;
mod date;
mod opening;
mod order;
mod page;
#[cfg(test)]
mod parsers_tests;
mod problem;
mod routes;
mod start;
mod stock;
mod user;

use std::process::ExitCode;

use example_support::server::{Server, exit_code, log_to_stderr};

use crate::args::{Args, Loopback};
use crate::start::StartError;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read();
    log_to_stderr();
    exit_code(run(args).await)
}

async fn run(args: Args) -> Result<(), StartError> {
    let server = Server::bind(&args.listen).await?;
    let admin = match &args.admin {
        Some(Loopback(listen)) => Some(server.bind_beside(*listen, "--admin").await?),
        None => None,
    };
    let apps = start::apps(args).await?;
    let admin = admin.zip(apps.admin);

    server.announce("listening on")?;
    if let Some((admin, _)) = &admin {
        admin.announce("admin on")?;
    }
    let serve_admin = async {
        if let Some((admin, app)) = admin {
            admin.serve(app).await;
        }
    };
    tokio::join!(server.serve(apps.shop), serve_admin);
    tracing::info!("stopped");
    Ok(())
}
