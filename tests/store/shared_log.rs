//! The log that policies of one name and one retention share, and what Redis keeps of it.

use std::time::Duration;

use test_support::{Redis, on_every_store};
use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Admitted, Decision, Limiter, Policy};

const A_MINUTE: Duration = Duration::from_secs(60);
/// A little more than a short window.
const SHORT: Duration = Duration::from_millis(250);

fn policy(quotas: &str) -> Policy {
    quotas.parse::<Policy>().unwrap().named("user")
}

async fn admit(store: &(impl Store + Clone), policy: Policy) -> Option<Admitted> {
    match Limiter::new(policy, store.clone()).check("alice").await.unwrap() {
        Decision::Admitted(admitted) => Some(admitted),
        Decision::Denied(_) => None,
    }
}

async fn remaining(store: &(impl Store + Clone), policy: Policy) -> u32 {
    Limiter::new(policy, store.clone()).peek("alice").await.unwrap().remaining()
}

on_every_store!(one_name_and_retention_share_a_log, another_name_or_retention_has_another_log);

async fn one_name_and_retention_share_a_log(store: impl Store + Clone) {
    let short = || policy("2/200ms").keep_for(A_MINUTE);
    assert!(admit(&store, policy("9/60s")).await.is_some());
    assert!(admit(&store, short()).await.is_some());
    assert!(admit(&store, short()).await.is_none(), "the short window is full");
    assert_eq!(remaining(&store, policy("9/60s")).await, 7);
    sleep(SHORT).await;
    assert!(admit(&store, short()).await.is_some());
    assert_eq!(remaining(&store, policy("9/60s")).await, 6, "the long window has all three");
}

async fn another_name_or_retention_has_another_log(store: impl Store + Clone) {
    let other = || policy("1/60s").named("other");
    for policy in [policy("1/60s"), policy("1/1h"), other()] {
        assert!(admit(&store, policy).await.is_some());
    }
    for policy in [policy("1/60s"), policy("1/1h"), other()] {
        assert!(admit(&store, policy).await.is_none());
    }
}

#[tokio::test]
async fn log_lives_for_its_retention() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    for (policy, log, retention_ms) in [
        (policy("3/1s"), "tsw:{=alice}:user:1s", 1_000),
        (policy("3/900ms,3/1500ms"), "tsw:{=alice}:user:1500ms", 1_500),
        (policy("3/1s").keep_for(A_MINUTE), "tsw:{=alice}:user:60s", 60_000),
    ] {
        let admitted = admit(&store, policy.clone()).await.unwrap();
        let ttl_ms: i64 = redis.run(&["PTTL", log]).await;
        let (least, most) = (retention_ms + 500, retention_ms + 1_001);
        assert!((least..=most).contains(&ttl_ms), "{log}: {ttl_ms}");
        Limiter::new(policy, store.clone()).cancel(&admitted).await.unwrap();
        assert_eq!(redis.run::<i64>(&["EXISTS", log]).await, 0, "it has no entry");
    }
    let busy = || policy("1/20ms");
    for _ in 0..20 {
        while admit(&store, busy()).await.is_none() {
            sleep(A_MINUTE / 10_000).await;
        }
        assert_eq!(redis.entries("tsw:{=alice}:user:20ms").await, 1, "the others have left it");
    }
}
