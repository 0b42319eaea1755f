//! Bans for users that are denied again and again, and bans by an operator.
//!
//! ```text
//! cargo run --example bans
//! ```

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tower_sliding_window::{
    Bans, MemoryStore, Penalty, Policy, Quota, SlidingWindowLayer, StoreError, key,
};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: two requests a minute for each user. The first strike
within ten minutes is a ban of a minute, the next ban lasts an hour, and each one after that a day.
  curl -i -X POST -H 'x-user-id: mallory' http://127.0.0.1:3000/orders
  curl http://127.0.0.1:3000/bans/mallory             shows a ban
  curl -X PUT http://127.0.0.1:3000/bans/mallory      imposes a ban of a day
  curl -X DELETE http://127.0.0.1:3000/bans/mallory   lifts it, and begins anew";

type Answer = Result<String, (StatusCode, String)>;

fn unavailable(error: StoreError) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}

/// Put your authentication in front of these routes.
async fn show(State(bans): State<Bans>, Path(user): Path<String>) -> Answer {
    Ok(match bans.get(user).await.map_err(unavailable)? {
        Some(ban) => format!("{} s left: {}\n", ban.remaining.as_secs(), ban.reason),
        None => "not banned\n".to_owned(),
    })
}

/// A ban only lengthens: a shorter one changes nothing.
async fn impose(State(bans): State<Bans>, Path(user): Path<String>) -> Answer {
    let ban = bans.impose(user, Duration::from_secs(24 * 3600), "by an operator").await;
    let ban = ban.map_err(unavailable)?;
    Ok(format!("{} s left: {}\n", ban.remaining.as_secs(), ban.reason))
}

/// A ban that is only lifted would be back with the next request, which the full log denies.
async fn lift(State(bans): State<Bans>, Path(user): Path<String>) -> Answer {
    let was_banned = bans.pardon(user).await.map_err(unavailable)?;
    Ok(if was_banned { "lifted\n" } else { "not banned\n" }.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let store = MemoryStore::new();
    let penalty: Penalty = "1/10m:1m,1h,24h".parse()?;
    let user = Policy::new("user").quota(Quota::per_minute(2)).penalty(penalty);
    // `OnBan::Mute` instead of the default 403 lets the request pass, marked for the handler.
    let limit = SlidingWindowLayer::new(user.clone(), key::header("x-user-id"), store.clone());
    // Finds the same bans, for it has the same policy and store.
    let bans = Bans::new(user, store).on_event(|event| println!("audit: {event:?}"));

    let app = Router::new()
        .route("/orders", post(async || "ordered\n").layer(limit))
        .route("/bans/{user}", get(show).put(impose).delete(lift))
        .with_state(bans);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
