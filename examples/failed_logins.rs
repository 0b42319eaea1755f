//! Five failed logins an hour for each account. Successful logins do not count.
//!
//! ```text
//! cargo run --example failed_logins
//! for i in 1 2 3 4 5 6; do curl -i -u alice:wrong -X POST http://127.0.0.1:3000/login/alice; done
//! curl -i -u alice:secret -X POST http://127.0.0.1:3000/login/bob
//! ```

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use axum::{Router, routing::post};
use tokio::net::TcpListener;
use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Serves POST /login/{account} on http://127.0.0.1:3000: five failed logins an hour for each account.
The password of alice and of bob is `secret`.
  curl -i -u alice:wrong -X POST http://127.0.0.1:3000/login/alice";

/// Stands for a check of the password, which is `secret` for alice and `secret` for bob.
async fn login(headers: HeaderMap) -> StatusCode {
    let right = ["Basic YWxpY2U6c2VjcmV0", "Basic Ym9iOnNlY3JldA=="];
    match headers.get(AUTHORIZATION) {
        Some(given) if right.iter().any(|right| given == right) => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let failures = Policy::new("failed-logins").quota(Quota::per_hour(5));
    let limit = SlidingWindowLayer::new(failures, key::path_param("account"), MemoryStore::new())
        // The request counts before the handler runs, so parallel guesses do not slip through. A
        // response other than 401 gives the place back.
        .cancel_if(|response| response.status() != StatusCode::UNAUTHORIZED);
    let app = Router::new().route("/login/{account}", post(login).layer(limit));

    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
