//! A quota that an operator changes while the server runs, and a stricter one on trial.
//!
//! ```text
//! cargo run --example live_policy
//! for i in 1 2 3; do curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders; done
//! curl -X PUT -d '2/60s' http://127.0.0.1:3000/quota
//! ```

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Router, routing::get, routing::post};
use tokio::net::TcpListener;
use tower_sliding_window::{
    Decision, MemoryStore, Policy, PolicyHandle, Quota, SlidingWindowLayer, key,
};

const HELP: &str = "\
Serves POST /orders on http://127.0.0.1:3000: five requests a minute for each user.
  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/orders
  curl http://127.0.0.1:3000/quota                   shows the quota
  curl -X PUT -d '2/60s' http://127.0.0.1:3000/quota changes it
Prints each request that the candidate quota of three a minute would have denied.";

async fn show(State(user): State<PolicyHandle>) -> String {
    format!("{}\n", user.get())
}

/// Applies at once in this process. Earlier requests still count. Put your authentication in front.
async fn change(State(user): State<PolicyHandle>, text: String) -> (StatusCode, String) {
    let policy = match text.trim().parse::<Policy>() {
        Ok(policy) => policy,
        Err(error) => return (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
    };
    match user.set(policy) {
        Ok(()) => (StatusCode::OK, format!("{}\n", user.get())),
        Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
    }
}

/// Reports what the candidate would have done. It runs on the request's path, so it must not block.
fn report(decision: &Decision) {
    for (policy, quota, state) in decision.usage().candidates() {
        if state.is_full() {
            println!("{}: {quota} would have denied this request", policy.name());
        }
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let user = Policy::new("user").quota(Quota::per_minute(5)).candidate(Quota::per_minute(3));
    let user = PolicyHandle::new(user);
    // `.shadow(true)` would try out the whole layer: it decides and reports, and denies nothing.
    let limit = SlidingWindowLayer::new(user.clone(), key::header("x-user-id"), MemoryStore::new())
        .on_decision(report);

    let app = Router::new()
        .route("/orders", post(async || "ordered\n").layer(limit))
        .route("/quota", get(show).put(change))
        .with_state(user);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
