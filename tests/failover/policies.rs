//! What the failure policies decide.

use crate::*;

#[tokio::test]
async fn instances_share_the_quota_in_an_outage() {
    let mut redis = Redis::start().await;
    let instance = async |instances| {
        limiter(user(9).budget(), &RedisStore::connect(redis.url()).await.unwrap())
            .failure_policy(FailurePolicy::local(instances))
    };
    let (three, many) = (instance(3).await, instance(100).await);
    redis.kill();
    for (limiter, share) in [(three, 3), (many, 1)] {
        let mut passed = 0;
        while admit(&limiter, "alice").await {
            passed += 1;
        }
        assert_eq!((passed, left(&limiter, "bob").await), (share, share));
        // More than the share would be more than the quota, if each instance admitted it.
        let error = limiter.check_cost("bob", share + 1).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable), "{error:?}");
        assert!(limiter.check_cost("bob", share).await.unwrap().is_admitted());
    }
}

/// Open admits without counting, and closed is a 503 and never a 429.
#[tokio::test]
async fn open_policy_admits_and_closed_policy_refuses() {
    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let with = |on_failure| limiter(user(1), &store).failure_policy(on_failure);
    let (open, closed) = (with(FailurePolicy::Open), with(FailurePolicy::Closed));
    let service = |on_failure| {
        let layer = by_user(user(1), store.clone()).headers_on_success(true);
        layer.failure_policy(on_failure).layer(service_fn(ok))
    };
    let (open_service, closed_service) =
        (service(FailurePolicy::Open), service(FailurePolicy::Closed));
    redis.kill();
    for _ in 0..10 {
        let admitted = admit_cost(&open, 1).await;
        assert_eq!((admitted.remaining(), admitted.timestamp()), (1, None));
        assert_eq!(decided_by(&open, "alice").await, DecidedBy::FailurePolicy);
        assert_eq!(left(&open, "alice").await, 1);
        let answer = send(&open_service, from_user("alice")).await;
        assert_eq!((answer.status.as_u16(), answer.header("ratelimit")), (200, None));

        closed.check("alice").await.unwrap_err();
        closed.peek("alice").await.unwrap_err();
        let answer = send(&closed_service, from_user("alice")).await;
        assert_eq!(answer.retry_after(), Some(1));
        assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"), "{answer:?}");
    }
    let logs =
        ["user", "device"].map(|name| (Policy::new(name).quota(Quota::per_hour(1)), "alice"));
    assert_eq!(open.check_all(logs).await.unwrap().decided_by(), DecidedBy::FailurePolicy);
    let impossible = open.check_cost("alice", 2).await.unwrap_err();
    assert!(matches!(impossible, StoreError::NoBudget { .. }), "open is not for everything");
    redis.start_again();
    until_redis_decides(&open).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(redis.run::<usize>(&["EXISTS", LOG]).await, 0, "nothing is written back");
    assert_eq!(send(&closed_service, from_user("alice")).await.status, 200);
}

#[tokio::test]
async fn full_memory_store_follows_failure_policy() {
    let store = MemoryStore::with_capacity(1);
    let service = |on_failure| {
        by_user(user(1), store.clone()).failure_policy(on_failure).layer(service_fn(ok))
    };
    assert_eq!(send(&service(FailurePolicy::Open), from_user("alice")).await.status, 200);
    for (on_failure, status) in
        [(FailurePolicy::Open, 200), (FailurePolicy::Closed, 503), (FailurePolicy::default(), 503)]
    {
        let new = send(&service(on_failure), from_user("bob")).await;
        assert_eq!((new.status.as_u16(), new.header("ratelimit")), (status, None));
        let known = send(&service(on_failure), from_user("alice")).await;
        assert_eq!(known.status, 429, "a key with a log is held to it");
    }
}
