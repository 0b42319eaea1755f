//! A request is settled at its real cost once that is known.

use std::time::Duration;

use http::{Request, Response};
use test_support::eventually;
use test_support::requests::by_user;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{Admitted, Decision, Limiter, Policy, PolicyHandle, Quota, StoreError};

test_support::on_every_store!(
    settling_down_frees_places_at_once,
    settling_up_counts_above_the_limit,
    settling_counts_from_the_admission,
    settling_is_idempotent,
    settling_at_zero_cancels,
    cancel_removes_settled_places,
    settling_reaches_every_log,
    settling_beyond_1024_changes_nothing,
    expired_request_is_not_settled,
    costless_request_is_not_settled,
    handler_settles_the_admission_of_a_layer,
);

fn limiter(store: impl Store) -> Limiter {
    Limiter::new(Quota::per_minute(10), store)
}

async fn reserve(limiter: &Limiter, cost: u32) -> Admitted {
    match limiter.check_cost("alice", cost).await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

async fn left(limiter: &Limiter) -> u32 {
    limiter.peek("alice").await.unwrap().remaining()
}

async fn admit(limiter: &Limiter) -> bool {
    limiter.check("alice").await.unwrap().is_admitted()
}

async fn settling_down_frees_places_at_once(store: impl Store) {
    let limiter = limiter(store);
    let reserved = reserve(&limiter, 10).await;
    assert!(!admit(&limiter).await);
    assert!(limiter.settle(&reserved, 8).await.unwrap());
    assert_eq!(left(&limiter).await, 2);
    assert!(admit(&limiter).await, "no cached denial is left");
    assert!(admit(&limiter).await);
    assert!(!admit(&limiter).await);
}

async fn settling_up_counts_above_the_limit(store: impl Store) {
    let limiter = Limiter::new(Quota::new(4, Duration::from_secs(2)), store);
    let reserved = reserve(&limiter, 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(limiter.settle(&reserved, 9).await.unwrap(), "it is never denied");
    assert_eq!(left(&limiter).await, 0);
    let Decision::Denied(denied) = limiter.check_cost("alice", 4).await.unwrap() else {
        panic!("the places are taken");
    };
    assert!(denied.retry_after() <= Duration::from_millis(1_500), "{denied:?}");
    tokio::time::sleep(denied.retry_after()).await;
    assert_eq!(reserve(&limiter, 4).await.remaining(), 0, "all of them have left the window");
}

/// A later request lies between the admission and the settlement.
async fn settling_counts_from_the_admission(store: impl Store) {
    let limiter = Limiter::new(Quota::new(5, Duration::from_secs(2)), store);
    let early = reserve(&limiter, 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let late = reserve(&limiter, 1).await;
    assert!(limiter.settle(&early, 4).await.unwrap());
    let Decision::Denied(denied) = limiter.check("alice").await.unwrap() else {
        panic!("the places are taken");
    };
    tokio::time::sleep(denied.retry_after()).await;
    assert_eq!(left(&limiter).await, 4, "only the later request is left");
    assert!(limiter.settle(&late, 3).await.unwrap());
    assert_eq!(left(&limiter).await, 2);
}

async fn settling_is_idempotent(store: impl Store) {
    let limiter = limiter(store);
    let (reserved, other) = (reserve(&limiter, 3).await, reserve(&limiter, 2).await);
    for cost in [5, 5, 1, 1, 4, 4, 3] {
        assert!(limiter.settle(&reserved, cost).await.unwrap());
        assert_eq!(left(&limiter).await, 8 - cost, "settled at {cost}");
    }
    assert!(limiter.cancel(&other).await.unwrap(), "it is another request");
    assert_eq!(left(&limiter).await, 7);
}

async fn settling_at_zero_cancels(store: impl Store) {
    let limiter = limiter(store);
    let reserved = reserve(&limiter, 3).await;
    assert!(limiter.settle(&reserved, 0).await.unwrap());
    assert_eq!(left(&limiter).await, 10);
    assert!(!limiter.cancel(&reserved).await.unwrap());
    assert!(!limiter.settle(&reserved, 5).await.unwrap(), "a cancelled request stays so");
    assert_eq!(left(&limiter).await, 10);
}

async fn cancel_removes_settled_places(store: impl Store) {
    let limiter = limiter(store);
    for cost in [1, 3, 8] {
        let reserved = reserve(&limiter, 3).await;
        assert!(limiter.settle(&reserved, cost).await.unwrap());
        assert!(limiter.cancel(&reserved).await.unwrap());
        assert_eq!(left(&limiter).await, 10, "all {cost} are free");
    }
}

async fn settling_reaches_every_log(store: impl Store + Clone) {
    let policy = |name: &str| PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(20)));
    let (user, tenant) = (policy("user"), policy("tenant"));
    let limiters = [&user, &tenant].map(|policy| Limiter::new(policy, store.clone()));
    let logs = [(&user, "alice"), (&tenant, "acme")];
    let decision = limiters[0].check_all_cost(logs, 5).await.unwrap();
    assert!(limiters[0].settle(decision.admitted().unwrap(), 7).await.unwrap());
    assert_eq!(left(&limiters[0]).await, 13);
    assert_eq!(limiters[1].peek("acme").await.unwrap().remaining(), 13);
    assert_eq!(left(&limiters[1]).await, 20, "no other key is charged");
}

async fn settling_beyond_1024_changes_nothing(store: impl Store) {
    let limiter = limiter(store);
    let reserved = reserve(&limiter, 3).await;
    let error = limiter.settle(&reserved, 1_025).await.unwrap_err();
    assert!(matches!(error, StoreError::CostTooHigh { cost: 1_025, most: 1_024 }), "{error}");
    assert_eq!(left(&limiter).await, 7);
    assert!(limiter.settle(&reserved, 1_024).await.unwrap());
    assert_eq!(left(&limiter).await, 0);
    assert!(limiter.settle(&reserved, 2).await.unwrap());
    assert_eq!(left(&limiter).await, 8);
}

async fn expired_request_is_not_settled(store: impl Store) {
    let limiter = Limiter::new(Quota::new(10, Duration::from_millis(300)), store);
    let reserved = reserve(&limiter, 3).await;
    eventually("it has left the window", async || left(&limiter).await == 10).await;
    assert!(!limiter.settle(&reserved, 9).await.unwrap());
    assert_eq!(left(&limiter).await, 10);
}

async fn costless_request_is_not_settled(store: impl Store) {
    let limiter = limiter(store);
    let reserved = reserve(&limiter, 0).await;
    assert!(!limiter.settle(&reserved, 3).await.unwrap());
    assert_eq!(left(&limiter).await, 10);
}

async fn handler_settles_the_admission_of_a_layer(store: impl Store + Clone) {
    let limiter = limiter(store.clone());
    let handler = async |request: Request<String>| {
        let decision = request.extensions().get::<Decision>().cloned().unwrap();
        limiter.settle(decision.admitted().unwrap(), 3).await.map(|was_there| {
            assert!(was_there);
            Response::new(String::new())
        })
    };
    let layer = by_user(Quota::per_minute(10), store).cost(|_| 8);
    let request = Request::builder().header("x-user-id", "alice").body(String::new()).unwrap();
    layer.layer(service_fn(handler)).oneshot(request).await.unwrap();
    assert_eq!(left(&limiter).await, 7);
}
