//! Bans while Redis does not answer.

use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::{Bans, DecidedBy, Limiter, Policy, Quota, RedisStore};

const HOUR: Duration = Duration::from_secs(3600);

/// A process: what it decides with, and what it bans with.
async fn process(redis: &Redis) -> (Limiter, Bans) {
    let builder = RedisStore::builder().deny_cache(false);
    let store = builder.connect(redis.url()).await.unwrap();
    let policy = Policy::new("user").quota(Quota::per_hour(5)).penalty("3/10m:1h".parse().unwrap());
    (Limiter::new(policy.clone(), store.clone()), Bans::new(policy, store))
}

async fn passes_without_redis(limiter: &Limiter, key: &str) -> bool {
    let decision = limiter.check(key).await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::LocalLog);
    decision.is_admitted()
}

#[tokio::test]
async fn ban_holds_in_an_outage() {
    let mut redis = Redis::start().await;
    let ((ours, our_bans), (_, their_bans)) = (process(&redis).await, process(&redis).await);
    our_bans.impose("mallory", HOUR, "by hand").await.unwrap();
    their_bans.impose("trudy", HOUR, "by hand").await.unwrap();
    assert!(!ours.check("trudy").await.unwrap().is_admitted(), "and so it is known here");
    redis.kill();
    assert!(!passes_without_redis(&ours, "mallory").await);
    assert!(!passes_without_redis(&ours, "trudy").await);
    assert!(passes_without_redis(&ours, "alice").await);
}

#[tokio::test]
async fn ban_lifted_before_an_outage_stays_lifted() {
    let mut redis = Redis::start().await;
    let ((ours, our_bans), (_, their_bans)) = (process(&redis).await, process(&redis).await);
    for user in ["mallory", "trudy"] {
        our_bans.impose(user, HOUR, "by mistake").await.unwrap();
        assert!(!ours.check(user).await.unwrap().is_admitted());
    }
    our_bans.lift("mallory").await.unwrap();
    their_bans.lift("trudy").await.unwrap();
    assert!(ours.check("trudy").await.unwrap().is_admitted(), "and so it is known here");
    redis.kill();
    assert!(passes_without_redis(&ours, "mallory").await);
    assert!(passes_without_redis(&ours, "trudy").await);
}

#[tokio::test]
async fn ban_lifted_after_an_outage_is_gone() {
    let mut redis = Redis::start_with(&["--appendonly", "yes"]).await;
    let (ours, bans) = process(&redis).await;
    bans.impose("mallory", HOUR, "by mistake").await.unwrap();
    assert!(!ours.check("mallory").await.unwrap().is_admitted());
    redis.kill();
    assert!(!passes_without_redis(&ours, "mallory").await);
    redis.restart().await;
    while bans.lift("mallory").await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(ours.check("mallory").await.unwrap().is_admitted());
}
