//! What is explained in an outage.

use std::time::Duration;

use test_support::{Redis, eventually};
use tower_sliding_window::{DecidedBy, FailurePolicy, Limiter, Quota, RedisStore, StoreError};

use crate::outage::{WINDOW, admitted, limiter, until_redis_decides};

#[tokio::test]
async fn local_log_is_explained_in_an_outage() {
    let mut redis = Redis::start().await;
    let ours = limiter(3, RedisStore::connect(redis.url()).await.unwrap());
    let before = admitted(&ours).await;
    redis.kill();
    let during = admitted(&ours).await;
    let explained = ours.explain("alice").await.unwrap();
    assert_eq!((explained.decided_by, &*explained.store), (DecidedBy::LocalLog, "memory"));
    let ids: Vec<_> = explained.quotas[0].admissions.iter().map(|it| it.id).collect();
    assert_eq!(ids, [before.id(), during.id()]);
    assert!(explained.to_string().contains("the log in this process"), "{explained}");

    redis.start_again();
    until_redis_decides(&ours).await;
    eventually("Redis is explained", async || {
        ours.explain("alice").await.unwrap().decided_by == DecidedBy::Store
    })
    .await;
    // An explanation leaves it to a check to write back what Redis has lost.
    admitted(&ours).await;
    redis.has_entries(WINDOW, 3).await;
    assert_eq!(ours.explain("alice").await.unwrap().quotas[0].free, 0);
}

#[tokio::test]
async fn explanation_has_the_share_of_a_process() {
    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let ours = limiter(6, store).failure_policy(FailurePolicy::local(3));
    redis.kill();
    let only = admitted(&ours).await;
    let explained = ours.explain_cost("alice", 2).await.unwrap();
    let quota = &explained.quotas[0];
    assert_eq!((quota.quota, quota.free), (Quota::per_hour(2), 1));
    assert_eq!(quota.waits_for, Some(only.id()));
    let error = ours.explain_cost("alice", 3).await.unwrap_err();
    assert!(error.retry_after() > Some(Duration::ZERO), "above the share, not the limit: {error}");
}

#[tokio::test]
async fn failure_policy_is_explained() {
    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let with = |on_failure| -> Limiter { limiter(1, store.clone()).failure_policy(on_failure) };
    let (open, closed) = (with(FailurePolicy::Open), with(FailurePolicy::Closed));
    admitted(&open).await;
    assert!(!open.explain("alice").await.unwrap().admitted);
    redis.kill();
    let explained = open.explain("alice").await.unwrap();
    assert!(explained.admitted, "{explained}");
    assert_eq!(explained.decided_by, DecidedBy::FailurePolicy);
    let error = closed.explain("alice").await.unwrap_err();
    assert!(!matches!(error, StoreError::CostAboveLimit { .. }), "{error}");
}
