//! One rule in front of a service.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::time::advance;
use tower::service_fn;
use tower_layer::Layer;
use tower_sliding_window::{Decision, MemoryStore, PolicyHandle, Quota, SlidingWindowLayer};

use test_support::requests::{by_user, from_user, ok, request, send, status};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const MINUTE: Duration = Duration::from_secs(60);

fn per_user(policy: impl Into<PolicyHandle>) -> SlidingWindowLayer {
    by_user(policy, MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn layer_retry_after_gets_admitted() {
    let service = per_user(Quota::new(1, Duration::from_secs(10))).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_millis(1500)).await;

    let wait = send(&service, from_user("alice")).await.retry_after();
    assert_eq!(wait, Some(9), "8.5 s, rounded up");
    advance(Duration::from_secs(8)).await;
    assert_eq!(status(&service, "alice").await, TOO_MANY, "a second less is too short");
    advance(Duration::from_secs(1)).await;
    assert_eq!(status(&service, "alice").await, OK);
}

/// Responds with the places that the request has left.
async fn remaining(request: Request<String>) -> Result<Response<String>, Infallible> {
    let decision = request.extensions().get::<Decision>();
    let left = decision.and_then(Decision::admitted).map(|admitted| admitted.remaining());
    Ok(Response::new(left.map_or("not counted".to_owned(), |left| left.to_string())))
}

#[tokio::test(start_paused = true)]
async fn only_a_whole_preflight_is_not_counted() {
    let user = ("x-user-id", "alice");
    let origin = ("origin", "https://shop.example");
    let asks = ("access-control-request-method", "POST");
    for (headers, method, is_counted) in [
        (&[user, origin, asks][..], Method::OPTIONS, false),
        (&[origin, asks], Method::OPTIONS, false),
        (&[user], Method::OPTIONS, true),
        (&[user, origin], Method::OPTIONS, true),
        (&[user, asks], Method::OPTIONS, true),
        (&[user, origin, asks], Method::GET, true),
    ] {
        let service = per_user(Quota::new(3, MINUTE)).layer(service_fn(remaining));
        for left in ["2", "1"] {
            let mut request = request(headers);
            *request.method_mut() = method.clone();
            let answer = send(&service, request).await;
            let expected = if is_counted { left } else { "not counted" };
            assert_eq!(answer.body, expected, "{method} {headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn custom_skip_replaces_the_default() {
    let layer = per_user(Quota::new(1, MINUTE)).skip(|parts| parts.uri.path() == "/health");
    let service = layer.layer(service_fn(ok));
    let at = |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path).header("x-user-id", "alice");
        request.body(String::new()).expect("a request")
    };
    for _ in 0..3 {
        assert_eq!(send(&service, at(Method::GET, "/health")).await.status, OK);
    }
    assert_eq!(send(&service, at(Method::OPTIONS, "/")).await.status, OK);
    assert_eq!(send(&service, at(Method::OPTIONS, "/")).await.status, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_logs_and_a_new_policy() {
    let policy = PolicyHandle::new(Quota::new(4, MINUTE));
    let layer = per_user(policy.clone());
    let (service, other) = (layer.layer(service_fn(ok)), layer.clone().layer(service_fn(ok)));
    let clone = service.clone();
    for service in [&service, &other, &clone] {
        assert_eq!(status(service, "alice").await, OK);
        advance(Duration::from_secs(10)).await;
    }

    policy.set(Quota::new(2, MINUTE)).unwrap();
    let answer = send(&clone, from_user("alice")).await;
    assert_eq!(answer.status, TOO_MANY, "three before the change count");
    assert_eq!(answer.retry_after(), Some(40), "the second newest must leave, not the oldest");
    assert_eq!(answer.header("ratelimit-policy"), Some("\"default\";q=2;w=60"));

    policy.set(Quota::new(5, MINUTE)).unwrap();
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&clone, "alice").await, OK);
    let answer = send(&service, from_user("alice")).await;
    assert_eq!(answer.header("ratelimit-policy"), Some("\"default\";q=5;w=60"));
}

#[tokio::test(start_paused = true)]
async fn jitter_makes_the_told_wait_longer_and_never_shorter() {
    let exact = Arc::new(Mutex::new(Vec::new()));
    let seen = exact.clone();
    let layer = per_user(Quota::new(1, MINUTE)).retry_jitter(Duration::from_secs(20));
    let layer = layer.on_decision(move |it| seen.lock().unwrap().push(it.usage().retry_after()));
    let service = layer.layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let answer = send(&service, from_user("alice")).await;
        let wait = answer.retry_after().unwrap();
        assert_eq!(answer.header("ratelimit"), Some(format!("\"default\";r=0;t={wait}").as_str()));
        assert!((60..=80).contains(&wait), "{wait}");
        told.insert(wait);
    }
    assert!(told.len() > 10, "{told:?}");
    assert!(exact.lock().unwrap()[1..].iter().all(|wait| *wait == MINUTE));
}
