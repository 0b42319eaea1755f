//! A chat that mutes spammers silently. A user that repeats a message, or writes to many strangers,
//! still sees a success for each message, but no other user sees the messages. See README.md.
//!
//! All servers with one Redis share the mutes. The messages themselves stay in the process that
//! received them: a real chat stores them elsewhere already.

mod admin;
mod alerts;
mod args;
mod chat;
mod routes;

use std::error::Error;
use std::process::ExitCode;

use axum::Router;
use clap::Parser;
use example_support::admin::{Admin, serve};
use example_support::logs::exit_code;
use example_support::server::Server;
use example_support::webhook::Webhook;
use speech_monitor::SpeechMonitor;

use crate::args::Args;
use crate::chat::Chat;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::parse())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let webhook = Webhook::new(&args.webhook)?;
    let monitor = match args.redis.connect().await? {
        Some(redis) => {
            tracing::info!(addresses = %redis.addresses, "mutes are kept in Redis");
            SpeechMonitor::on_redis(args.rule, &redis.store)
        }
        None => {
            tracing::info!("mutes are kept in this process");
            SpeechMonitor::in_process(args.rule)
        }
    };
    let monitor = monitor.exempt(&args.exempt).on_mute(alerts::of_mutes(webhook.clone()));
    let chat = Chat::new(monitor.clone());

    let operator = admin::routes(monitor, chat.clone());
    let clients = routes::routes(chat.clone(), args.quota);
    serve(server, clients, admin, operator, Router::new()).await?;
    chat.finish().await;
    webhook.flush().await;
    Ok(())
}
