//! Counting by response: a place is freed exactly when the layer says so, and a cancellation is not
//! lost with its request.

use http::{Request, Response, StatusCode};
use test_support::requests::by_user;

use crate::*;

const QUOTA: Quota = Quota::per_minute(3);

fn by_default(store: impl Store) -> SlidingWindowLayer {
    by_user(QUOTA, store).failure_policy(FailurePolicy::Closed)
}

fn layer(store: impl Store) -> SlidingWindowLayer {
    by_default(store).cancel_if(|response| response.status() == StatusCode::GONE)
}

fn request(wanted: &str) -> Request<String> {
    Request::builder().header("x-user-id", "alice").body(wanted.to_owned()).unwrap()
}

/// Responds with the status in the body, fails on `fail`, and never answers on `hang`.
async fn handler(request: Request<String>) -> Result<Response<String>, &'static str> {
    match request.body().as_str() {
        "fail" => Err("the handler failed"),
        "hang" => std::future::pending().await,
        status => Ok(Response::builder().status(status).body("body".to_owned()).unwrap()),
    }
}

test_support::on_every_store!(response_can_free_the_place, hang_up_keeps_its_place,);

async fn response_can_free_the_place(store: impl Store + Clone) {
    let service = layer(store.clone()).layer(service_fn(handler));
    let by_default = by_default(store.clone()).layer(service_fn(handler));
    let limiter = limiter(QUOTA, store);
    for _ in 0..10 {
        let response = service.clone().oneshot(request("410")).await.unwrap();
        assert_eq!(response.status(), StatusCode::GONE);
        assert_eq!(left(&limiter).await, 3, "at once, not some time later");
    }
    service.clone().oneshot(request("200")).await.unwrap();
    assert_eq!(left(&limiter).await, 2, "other answers are charged");
    assert_eq!(service.oneshot(request("fail")).await.unwrap_err(), "the handler failed");
    assert_eq!(left(&limiter).await, 1, "the handler ran, so the request counts");
    by_default.oneshot(request("410")).await.unwrap();
    assert_eq!(left(&limiter).await, 0, "a layer that was not told frees no place");
}

async fn hang_up_keeps_its_place(store: impl Store + Clone) {
    let service = layer(store.clone()).layer(service_fn(handler));
    let limiter = limiter(QUOTA, store);
    for expected in [2, 1, 0] {
        let mut hanging = task::spawn(service.clone().oneshot(request("hang")));
        while left(&limiter).await > expected {
            assert_pending!(hanging.poll());
        }
        assert_pending!(hanging.poll(), "the handler runs");
        drop(hanging);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(left(&limiter).await, expected);
    }
    let denied = service.oneshot(request("200")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// The client hangs up after Redis has admitted the request and before the layer has the outcome, so
/// there is nothing to cancel yet.
#[tokio::test]
async fn hang_up_before_the_outcome_frees_the_place_only_if_told_to() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let limiter = limiter(QUOTA, store.clone());
    for layer in [by_default(store.clone()), layer(store)] {
        let before = left(&limiter).await;
        let service = layer.layer(service_fn(handler));
        let mut request = task::spawn(service.oneshot(request("200")));
        assert_pending!(request.poll());
        eventually("the place is taken", async || left(&limiter).await < before).await;
        drop(request);
        sleep(Duration::from_millis(500)).await;
        assert_eq!(left(&limiter).await, 2, "only a layer that was told frees the place");
    }
}
