//! One rule in front of a service: who is let through, who is told to come back, and when.

use std::convert::Infallible;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::time::advance;
use tower::service_fn;
use tower_layer::Layer;
use tower_sliding_window::{
    Decision, MemoryStore, Policy, PolicyHandle, Quota, SlidingWindowLayer, key,
};

use test_support::requests::{from_user, ok, request, send, status};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const MINUTE: Duration = Duration::from_secs(60);

fn per_user(policy: impl Into<PolicyHandle>) -> SlidingWindowLayer {
    SlidingWindowLayer::new(policy, key::header("x-user-id"), MemoryStore::new())
}

fn text(policy: &str) -> Policy {
    policy.parse().expect("a policy")
}

#[tokio::test(start_paused = true)]
async fn exactly_the_limit_is_admitted_and_the_next_request_is_denied() {
    let service = per_user(Quota::new(5, MINUTE)).layer(service_fn(ok));
    for _ in 0..5 {
        assert_eq!(status(&service, "alice").await, OK);
    }
    assert_eq!(status(&service, "alice").await, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn the_window_slides_and_has_no_boundary_to_burst_across() {
    let service = per_user(Quota::new(2, MINUTE)).layer(service_fn(ok));
    advance(Duration::from_secs(59)).await;
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_secs(2)).await;
    assert_eq!(status(&service, "alice").await, TOO_MANY, "a new minute, but the same window");
    advance(Duration::from_micros(57_999_999)).await;
    assert_eq!(status(&service, "alice").await, TOO_MANY, "a microsecond early");
    advance(Duration::from_micros(1)).await;
    assert_eq!(status(&service, "alice").await, OK);
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_window_of_its_own() {
    let service = per_user(Quota::new(1, MINUTE)).layer(service_fn(ok));
    for user in ["alice", "bob", "Alice", "alice{1}"] {
        assert_eq!(status(&service, user).await, OK, "{user}");
    }
    for user in ["alice", "bob", "Alice", "alice{1}"] {
        assert_eq!(status(&service, user).await, TOO_MANY, "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_as_told_is_admitted() {
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

#[tokio::test(start_paused = true)]
async fn even_a_wait_of_a_microsecond_is_told_as_a_second() {
    let service = per_user(Quota::new(1, Duration::from_micros(2))).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_micros(1)).await;
    assert_eq!(send(&service, from_user("alice")).await.retry_after(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn hammering_does_not_extend_the_wait() {
    let service = per_user(Quota::new(2, Duration::from_secs(10))).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, OK);
    for left in (1..=10).rev() {
        for _ in 0..20 {
            let answer = send(&service, from_user("alice")).await;
            assert_eq!((answer.status, answer.retry_after()), (TOO_MANY, Some(left)));
        }
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn clones_of_the_layer_and_of_the_service_share_the_windows() {
    let layer = per_user(Quota::new(3, MINUTE));
    let (one, other) = (layer.layer(service_fn(ok)), layer.clone().layer(service_fn(ok)));
    assert_eq!(status(&one, "alice").await, OK);
    assert_eq!(status(&one.clone(), "alice").await, OK);
    assert_eq!(status(&other, "alice").await, OK);
    for service in [one, other.clone(), other] {
        assert_eq!(status(&service, "alice").await, TOO_MANY);
    }
}

#[tokio::test(start_paused = true)]
async fn layers_with_one_store_share_the_windows_of_policies_of_one_name() {
    let store = MemoryStore::new();
    let layer = |name: &str| {
        let policy = text("1/60s").named(name);
        SlidingWindowLayer::new(policy, key::header("x-user-id"), store.clone())
            .layer(service_fn(ok))
    };
    assert_eq!(status(&layer("orders"), "alice").await, OK);
    assert_eq!(status(&layer("orders"), "alice").await, TOO_MANY);
    assert_eq!(status(&layer("search"), "alice").await, OK);
}

#[tokio::test(start_paused = true)]
async fn every_quota_of_a_policy_holds() {
    let service = per_user(text("2/1s,3/60s")).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(send(&service, from_user("alice")).await.retry_after(), Some(1));
    advance(Duration::from_secs(1)).await;
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(send(&service, from_user("alice")).await.retry_after(), Some(59));
}

/// A CORS preflight, of a user who is named so that a count of it would show.
const PREFLIGHT: &[(&str, &str)] = &[
    ("x-user-id", "alice"),
    ("origin", "https://shop.example"),
    ("access-control-request-method", "POST"),
];

fn with_method(headers: &[(&str, &str)], method: Method) -> Request<String> {
    let mut request = request(headers);
    *request.method_mut() = method;
    request
}

#[tokio::test(start_paused = true)]
async fn only_a_whole_preflight_is_skipped() {
    let [user, origin, asks] = [PREFLIGHT[0], PREFLIGHT[1], PREFLIGHT[2]];
    for (headers, method) in [
        (&[user][..], Method::OPTIONS),
        (&[user, origin], Method::OPTIONS),
        (&[user, asks], Method::OPTIONS),
        (&[user, origin, asks], Method::GET),
    ] {
        let service = per_user(Quota::new(1, MINUTE)).layer(service_fn(ok));
        let send = async || send(&service, with_method(headers, method.clone())).await.status;
        assert_eq!((send().await, send().await), (OK, TOO_MANY), "{method} {headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn preflight_requests_are_neither_limited_nor_counted() {
    let service = per_user(Quota::new(1, MINUTE)).layer(service_fn(ok));
    let preflight = || with_method(PREFLIGHT, Method::OPTIONS);
    assert_eq!(send(&service, preflight()).await.status, OK);
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(send(&service, preflight()).await.status, OK);
    let anonymous = with_method(&PREFLIGHT[1..], Method::OPTIONS);
    assert_eq!(send(&service, anonymous).await.status, OK, "browsers send no credentials");
}

#[tokio::test(start_paused = true)]
async fn a_predicate_of_ones_own_replaces_the_default_skip() {
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
async fn a_request_takes_as_many_places_as_it_weighs() {
    let layer = per_user(Quota::new(5, MINUTE)).cost(|parts| {
        parts.headers.get("x-count").map_or(1, |it| it.to_str().unwrap().parse().unwrap())
    });
    let service = layer.layer(service_fn(ok));
    let weighing = |count| request(&[("x-user-id", "alice"), ("x-count", count)]);

    assert_eq!(send(&service, weighing("3")).await.status, OK);
    assert_eq!(send(&service, weighing("3")).await.status, TOO_MANY, "two places are left");
    let impossible = send(&service, weighing("6")).await;
    assert_eq!(impossible.status, TOO_MANY);
    assert_eq!(impossible.header("retry-after"), None, "no wait would help");
    assert_eq!(send(&service, weighing("2")).await.status, OK, "neither denial took a place");
    assert_eq!(status(&service, "alice").await, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_holds_at_once_for_existing_clones_and_knows_the_past() {
    let policy = PolicyHandle::new(Quota::new(4, MINUTE));
    let service = per_user(policy.clone()).layer(service_fn(ok));
    let clone = service.clone();
    for _ in 0..3 {
        assert_eq!(status(&service, "alice").await, OK);
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
    assert_eq!(status(&service, "alice").await, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_finds_the_decision_in_the_request() {
    async fn remaining(request: Request<String>) -> Result<Response<String>, Infallible> {
        let decision = request.extensions().get::<Decision>();
        Ok(Response::new(match decision.and_then(Decision::admitted) {
            Some(admitted) => admitted.remaining().to_string(),
            None => "not counted".to_owned(),
        }))
    }
    let service = per_user(Quota::new(3, MINUTE)).layer(service_fn(remaining));
    for left in ["2", "1", "0"] {
        assert_eq!(send(&service, from_user("alice")).await.body, left);
    }
    let skipped = with_method(PREFLIGHT, Method::OPTIONS);
    assert_eq!(send(&service, skipped).await.body, "not counted");
}
