//! Waiting for something that takes a moment.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not hold within 30 seconds.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
