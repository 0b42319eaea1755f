//! Policies from a configuration file, changed while the server runs.
//!
//! ```text
//! cargo run --example live_policy                    # or: -- FILE.toml, read again on SIGHUP
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Router, routing::get, routing::post};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_sliding_window::{MemoryStore, Policies, SlidingWindowLayer, key};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: five requests a minute for each user.
  live_policy [FILE]                                  FILE has the policies, as GET /policies shows them
  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders
  curl http://127.0.0.1:3000/policies                 shows the policies
  curl -X PUT --data-binary @FILE http://127.0.0.1:3000/policies  changes all of them, or none
  kill -HUP PID                                       reads FILE again";

/// What holds without a file. A policy is a text, or a table with more than quotas.
const CONFIGURATION: &str = r#"
ip = "100/60s"

[user]
quotas = ["2/1s", "5/60s"]
penalty = "3/10m:1m,1h,24h"
"#;

async fn show(State(policies): State<Policies>) -> String {
    toml::to_string(&policies).unwrap_or_default()
}

/// Put your authentication in front of this.
async fn change(State(policies): State<Policies>, text: String) -> (StatusCode, String) {
    match reload(&policies, &text) {
        Ok(changes) => (StatusCode::OK, changes),
        Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
    }
}

/// Replaces all policies at once, or none of them. Requests that were admitted before still count.
fn reload(policies: &Policies, text: &str) -> Result<String, Box<dyn Error>> {
    let changes = policies.reload(toml::from_str(text)?)?;
    Ok(changes.iter().map(|change| format!("{change}\n")).collect())
}

/// Reads the file again on each SIGHUP.
async fn follow(path: String, policies: Policies) -> std::io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    while hangups.recv().await.is_some() {
        let text = tokio::fs::read_to_string(&path).await;
        match text.map_err(Into::into).and_then(|text| reload(&policies, &text)) {
            Ok(changes) => print!("{changes}"),
            Err(error) => eprintln!("{path}: {error}"),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    println!("{HELP}");
    let file = std::env::args().nth(1);
    if file.as_ref().is_some_and(|argument| argument.starts_with('-')) {
        return Ok(());
    }

    let text = match &file {
        Some(path) => std::fs::read_to_string(path).map_err(|why| format!("{path}: {why}"))?,
        None => CONFIGURATION.into(),
    };
    let policies: Policies = toml::from_str(&text)?;
    let (user, ip) = (policies.get("user"), policies.get("ip"));
    let (user, ip) = user.zip(ip).ok_or("the configuration needs the policies user and ip")?;
    if let Some(file) = file {
        tokio::spawn(follow(file, policies.clone()));
    }

    // `.shadow(true)` would try out the whole layer: it decides and reports, and denies nothing.
    let limit = SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new())
        .rule(ip, key::peer_ip().ipv6_prefix(56));
    let app = Router::new()
        .route("/orders", post(async || "ordered\n").layer(limit))
        .route("/policies", get(show).put(change))
        .with_state(policies);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
