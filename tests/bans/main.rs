//! Penalties and bans.

mod http;
mod manual;
mod pages;
mod penalty;

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::store::Strike;
use tower_sliding_window::{Decision, Limiter, Policy, Quota};

/// Two a second; the second strike within a minute is a ban of two seconds, later ones of three.
fn policy() -> Policy {
    Policy::new("user").quota(Quota::per_second(2)).penalty("2/1m:2s,3s".parse().unwrap())
}

/// Checks until the decision is a denial, and returns its effect on the ban record.
async fn run_into(limiter: &Limiter) -> (Strike, Option<Duration>) {
    loop {
        if let Decision::Denied(denied) = limiter.check("mallory").await.unwrap() {
            let strike = denied.usage().bans().map(|(_, ban)| ban.strike()).next();
            return (strike.unwrap_or_default(), denied.usage().banned_for());
        }
    }
}

/// Goes all the way to a ban, and returns how long it is.
async fn provoke(limiter: &Limiter) -> Duration {
    assert_eq!(run_into(limiter).await, (Strike::Counted, None));
    sleep(Duration::from_millis(1_050)).await;
    let (strike, banned) = run_into(limiter).await;
    assert_eq!(strike, Strike::Banned);
    banned.expect("how long")
}
