//! Penalties and bans. Here are the strikes: a key that keeps running into a quota is banned, for longer each time.

mod http;
mod manual;
mod pages;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{Request, Response, StatusCode};
use test_support::recorder::RecordedMetrics;
use test_support::requests::*;
use test_support::warnings::Warnings;
use test_support::*;
use tokio::time::{advance, sleep};
use tokio_test::{assert_pending, task};
use tower::{Layer, service_fn};
use tower_sliding_window::store::{Check, LogId, Store, StoreFuture, Strike};
use tower_sliding_window::*;

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

test_support::on_every_store!(
    without_deny_cache: ban_outlasts_the_window_and_the_next_is_longer,
);

async fn ban_outlasts_the_window_and_the_next_is_longer(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    let (recorded, _recorder) = RecordedMetrics::listen();
    for seconds in [2, 3] {
        let ban = provoke(&limiter).await;
        let length = Duration::from_secs(seconds);
        assert!(ban <= length && ban > length - Duration::from_millis(500), "{ban:?}");
        sleep(Duration::from_millis(1_100)).await;
        let mut left = ban;
        for _ in 0..20 {
            let decision = limiter.check("mallory").await.unwrap();
            let denied = decision.denied().expect("the window has room, and the ban stands");
            assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
            assert!(denied.retry_after() <= left, "hammering does not lengthen it");
            left = denied.retry_after();
        }
        assert!(limiter.check(seconds).await.unwrap().is_admitted(), "others are not banned");
        sleep(left).await;
        assert!(limiter.check("mallory").await.unwrap().is_admitted(), "as promised");
    }
    let counted = ["strikes", "bans"]
        .map(|what| recorded.count(&format!("sliding_window_{what}_total{{policy=user}}")));
    assert_eq!(counted, [2, 2], "a strike that brings a ban counts as a ban");
}
