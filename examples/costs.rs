//! Requests that cost more than others: an export ten, a search one.
//!
//! ```text
//! cargo run --example costs
//! ```

use axum::extract::Extension;
use axum::http::request::Parts;
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_sliding_window::{
    Decision, Key, MemoryStore, MissingKey, Policy, Quota, SlidingWindowLayer, key,
};

const HELP: &str = "\
Serves /search and /export on http://127.0.0.1:3000: a budget of twenty a minute for each user. A search
costs one, an export ten. Requests without a token share one log of their own.
  curl -i -H 'authorization: Bearer alice' http://127.0.0.1:3000/export";

fn cost(request: &Parts) -> u32 {
    if request.uri.path() == "/export" { 10 } else { 1 }
}

/// Stands for the check of a token, which is the name of the user here.
fn subject(token: &str) -> Option<Key> {
    (!token.is_empty()).then(|| Key::from(token))
}

/// A handler finds the decision in the extensions of the request.
async fn handler(Extension(decision): Extension<Decision>) -> String {
    format!("{} left\n", decision.usage().remaining())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let budget = Policy::new("budget").quota(Quota::per_minute(20)).budget();
    // The first extractor that finds a key wins.
    let user = key::first_of(key::bearer(subject), key::constant("anonymous"));
    let limit = SlidingWindowLayer::new(budget, user, MemoryStore::new())
        .cost(cost)
        .headers_on_success(true)
        // A rule without a key could also be skipped: `MissingKey::SkipRule`.
        .on_missing_key(MissingKey::Reject(axum::http::StatusCode::UNAUTHORIZED))
        // A health check is neither counted nor limited.
        .skip(|request| request.uri.path() == "/health");

    let app = Router::new()
        .route("/search", get(handler))
        .route("/export", get(handler))
        .route("/health", get(async || "ok\n"))
        .layer(limit);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
