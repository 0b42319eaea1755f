//! What is explained in an outage.

use std::time::Duration;

use test_support::{Redis, admit_cost, eventually};
use tower_sliding_window::{DecidedBy, FailurePolicy, Quota, RedisStore, StoreError};

use crate::{LOG, limiter, until_redis_decides, user};

#[tokio::test]
async fn local_log_is_explained_in_an_outage() {
    let mut redis = Redis::start().await;
    let ours = limiter(user(3), &RedisStore::connect(redis.url()).await.unwrap());
    let before = admit_cost(&ours, 1).await;
    redis.kill();
    let during = admit_cost(&ours, 1).await;
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
    admit_cost(&ours, 1).await;
    redis.has_entries(LOG, 3).await;
    assert_eq!(ours.explain("alice").await.unwrap().quotas[0].free, 0);
}

#[tokio::test]
async fn failure_policy_is_explained() {
    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let with = |limit, on_failure| limiter(user(limit).budget(), &store).failure_policy(on_failure);
    let (open, closed) = (with(1, FailurePolicy::Open), with(1, FailurePolicy::Closed));
    admit_cost(&open, 1).await;
    assert!(!open.explain("alice").await.unwrap().admitted);
    redis.kill();
    let explained = open.explain("alice").await.unwrap();
    assert!(explained.admitted, "{explained}");
    assert_eq!(explained.decided_by, DecidedBy::FailurePolicy);
    let error = closed.explain("alice").await.unwrap_err();
    assert!(!matches!(error, StoreError::CostAboveLimit { .. }), "{error}");

    let share = with(9, FailurePolicy::local(3));
    admit_cost(&share, 1).await;
    let explained = share.explain("alice").await.unwrap();
    assert_eq!((explained.quotas[0].quota, explained.quotas[0].free), (Quota::per_hour(3), 1));
    let error = share.explain_cost("alice", 4).await.unwrap_err();
    assert!(error.retry_after() > Some(Duration::ZERO), "above the share, not the limit: {error}");
}
