//! At most five accounts behind an address in ten minutes, beside the quota of each user: a script with a
//! hundred accounts on one machine gets as far as with five, and a household notices nothing.
//!
//! ```text
//! cargo run --example accounts_per_address
//! ```

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, header::RETRY_AFTER};
use axum::{Router, routing::post};
use tower::ServiceExt;
use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Sends orders of a household and of a script with a hundred accounts to a service: five orders a minute
for each user, and five users in ten minutes for each address. Takes no options.";

fn app() -> Router {
    let user = Policy::new("user").quota(Quota::per_minute(5));
    // It counts different users. A user who is counted takes no further place, however many orders follow.
    let accounts =
        Policy::new("accounts").quota(Quota::new(5, Duration::from_secs(600))).distinct();
    // A request passes both rules or counts under none: an account that is refused is not remembered.
    let limit = SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new())
        // Behind a proxy: `key::client_ip`.
        .rule_distinct(accounts, key::peer_ip(), key::header("x-user-id"));
    Router::new().route("/orders", post(async || "ordered\n")).layer(limit)
}

/// Sends an order, and returns whether it was admitted and the `Retry-After` of a denial.
///
/// `axum::serve` inserts the address itself, with `into_make_service_with_connect_info::<SocketAddr>()`.
async fn order(app: &Router, from: [u8; 4], user: &str) -> (bool, Option<String>) {
    let address = ConnectInfo(SocketAddr::from((from, 50_000)));
    let request = Request::post("/orders").header("x-user-id", user).extension(address);
    let request = request.body(Body::empty()).expect("the parts are valid");
    let response = app.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
    let wait = response.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok());
    (response.status().is_success(), wait.map(str::to_owned))
}

/// Sends the orders of several users behind an address, and prints what became of them.
async fn orders(app: &Router, who: &str, from: [u8; 4], users: u32, each: u32) {
    let (mut admitted, mut passed, mut wait) = (0, HashSet::new(), None);
    for user in 0..users {
        for _ in 0..each {
            let (is_admitted, retry_after) = order(app, from, &format!("{who}-{user}")).await;
            admitted += u32::from(is_admitted);
            wait = retry_after.or(wait);
            if is_admitted {
                passed.insert(user);
            }
        }
    }
    let sent = users * each;
    println!("{who}: {users} users, {sent} orders sent, {admitted} admitted");
    if let Some(wait) = wait {
        println!("  {} users got through; the last denial: again in {wait} s", passed.len());
    }
}

#[tokio::main]
async fn main() {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return;
    }

    let (home, machine) = ([203, 0, 113, 7], [198, 51, 100, 66]);
    let app = app();
    orders(&app, "family", home, 4, 3).await;
    orders(&app, "script", machine, 100, 5).await;
    // The accounts behind the address were counted, not their orders.
    orders(&app, "family", home, 5, 1).await;
}
