//! A limiter's answer to one request.

use std::time::Duration;

use tower_sliding_window::{Decision, Limiter};

/// Checks a key, and returns whether it was admitted.
pub async fn admit(limiter: &Limiter, key: &str) -> bool {
    limiter.check(key).await.unwrap().is_admitted()
}

/// Checks a key that must be denied, and returns how long it has to wait.
pub async fn retry_after(limiter: &Limiter, key: &str) -> Duration {
    match limiter.check(key).await.unwrap() {
        Decision::Denied(denied) => denied.retry_after(),
        Decision::Admitted(_) => panic!("admitted"),
    }
}
