//! A decision is reported, and a store that is far away is asked, when the response future is polled. The task
//! that calls the service may be another one, such as that of a `tower::buffer`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Response, StatusCode};
use test_support::StubStore;
use test_support::requests::{by_user, from_user, ok};
use tokio::time::{sleep, timeout};
use tower::buffer::Buffer;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::store::{LogOutcome, Outcome, QuotaState, StoreFuture};
use tower_sliding_window::{MemoryStore, Quota};

const OK: StatusCode = StatusCode::OK;

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_not_sent() {
    let sent = Arc::new(AtomicU32::new(0));
    let counter = sent.clone();
    let admit = move |_: &_| {
        let counter = counter.clone();
        StoreFuture::later(async move {
            counter.fetch_add(1, Ordering::SeqCst);
            let state = QuotaState::new(1, Duration::ZERO, Duration::ZERO);
            Ok(Outcome::new(true, [LogOutcome::new([state])]))
        })
    };
    let layer = by_user(Quota::per_minute(9), StubStore(admit, || ())).cancel_if(|_| false);
    let mut service = layer.layer(service_fn(ok));
    drop(service.ready().await.unwrap().call(from_user("alice")));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sent.load(Ordering::SeqCst), 0);
}

/// A store in this process has decided when the future is dropped: the request gives its place back.
#[tokio::test(start_paused = true)]
async fn unpolled_admission_gives_its_place_back() {
    let layer = by_user(Quota::per_minute(1), MemoryStore::new());
    let mut service = layer.layer(service_fn(ok));
    for _ in 0..3 {
        drop(service.ready().await.unwrap().call(from_user("alice")));
    }
    let response = service.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(response.status(), OK);
    let denied = service.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A panic of a closure of the application ends the request, not the service of all requests.
#[tokio::test]
async fn panic_in_on_rejection_leaves_the_buffer() {
    let layer = by_user(Quota::per_minute(1), MemoryStore::new()).on_rejection(|_, _| {
        if true {
            panic!("a bug of the application");
        }
        Response::new(String::new())
    });
    let buffer = Buffer::new(layer.layer(service_fn(ok)), 8);
    let send = |user: &'static str| {
        let buffer = buffer.clone();
        tokio::spawn(async move { buffer.oneshot(from_user(user)).await.map(|it| it.status()) })
    };
    assert_eq!(send("alice").await.unwrap().unwrap(), OK);
    let _ = send("alice").await;
    assert_eq!(send("bob").await.unwrap().unwrap(), OK);
}

#[tokio::test]
async fn denial_holds_no_permit() {
    let inner = GlobalConcurrencyLimitLayer::new(1).layer(service_fn(ok));
    let layer = by_user(Quota::per_minute(1), MemoryStore::new());
    let (mut one, mut other) = (layer.layer(inner.clone()), layer.layer(inner));
    assert_eq!(one.ready().await.unwrap().call(from_user("alice")).await.unwrap().status(), OK);
    let denied = one.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let ready = timeout(Duration::from_secs(1), other.ready()).await;
    assert!(ready.is_ok(), "the denied client keeps the only permit while it is idle");
}

#[tokio::test]
async fn on_decision_runs_in_the_task_of_the_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tasks = seen.clone();
    let layer = by_user(Quota::per_minute(1), MemoryStore::new())
        .on_decision(move |_| tasks.lock().unwrap().push(tokio::task::id()));
    let buffer = Buffer::new(layer.layer(service_fn(ok)), 8);
    for expected in [OK, StatusCode::TOO_MANY_REQUESTS] {
        let buffer = buffer.clone();
        let task = tokio::spawn(async move {
            assert_eq!(buffer.oneshot(from_user("alice")).await.unwrap().status(), expected);
            tokio::task::id()
        });
        let id = task.await.unwrap();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [id]);
    }
}
