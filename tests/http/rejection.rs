//! The layer's own responses: what they say, what they hide, and how to replace them.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use serde_json::json;
use tokio::time::advance;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tower::service_fn;
use tower_layer::Layer;
use tower_sliding_window::store::{Check, Store, StoreFuture};
use tower_sliding_window::{
    Decision, Limiter, MemoryStore, Policy, PolicyHandle, Quota, Rejection, SlidingWindowLayer,
    StoreError, key,
};

use test_support::StubStore;
use test_support::requests::{HttpResponse, by_user, from_user, ok, request, send, status};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const FULL: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn per_user(limit: u32, store: impl Store) -> SlidingWindowLayer {
    let policy = Policy::new("user").quota(Quota::per_minute(limit));
    by_user(policy, store)
}

/// Returns the answer to the second request of a user.
async fn second(layer: SlidingWindowLayer) -> HttpResponse {
    let service = layer.layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    send(&service, from_user("alice")).await
}

#[tokio::test(start_paused = true)]
async fn denial_fills_every_field() {
    let service = per_user(1, MemoryStore::new()).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_millis(23_500)).await;

    let answer = send(&service, from_user("alice")).await;
    assert_eq!(answer.status, TOO_MANY);
    assert_eq!(answer.header("retry-after"), Some("37"));
    assert_eq!(answer.header("ratelimit"), Some(r#""user";r=0;t=37"#));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=1;w=60"#));
    assert_eq!(
        answer.problem(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": ["user"],
        })
    );
}

/// A handler and `on_rejection` can send what the layer sends.
#[tokio::test(start_paused = true)]
async fn response_of_a_handler_has_every_field() {
    let store = MemoryStore::new();
    let by_layer = per_user(1, store.clone());
    assert_eq!(second(by_layer.clone()).await.retry_after(), Some(60));
    advance(Duration::from_millis(23_500)).await;
    let service = by_layer.layer(service_fn(ok));
    let of_layer = send(&service, from_user("alice")).await;

    let limiter = Limiter::new(Policy::new("user").quota(Quota::per_minute(1)), store);
    let Decision::Denied(denied) = limiter.check("alice").await.unwrap() else { panic!("full") };
    let (head, body) = denied.to_response().into_parts();
    assert_eq!((head.status, head.headers, body), (TOO_MANY, of_layer.headers, of_layer.body));

    let of_rejection = Rejection::Denied(denied).to_response();
    assert_eq!(of_rejection.headers()["retry-after"], "37");
    assert!(!of_rejection.headers().contains_key("ratelimit"), "a layer may have other fields");
}

#[tokio::test(start_paused = true)]
async fn response_to_a_banned_key_is_a_403() {
    let policy =
        Policy::new("user").quota(Quota::per_minute(1)).penalty("1/1h:2m".parse().unwrap());
    let limiter = Limiter::new(policy, MemoryStore::new());
    let _ = limiter.check("alice").await.unwrap();
    let Decision::Denied(denied) = limiter.check("alice").await.unwrap() else { panic!("full") };
    let response = denied.to_response();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(response.headers()["retry-after"], "120");
    assert!(!response.headers().contains_key("ratelimit"));
}

#[tokio::test(start_paused = true)]
async fn ratelimit_header_on_success_is_opt_in() {
    let silent = per_user(2, MemoryStore::new()).layer(service_fn(ok));
    let answer = send(&silent, from_user("alice")).await;
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));

    let telling = per_user(2, MemoryStore::new()).headers_on_success(true).layer(service_fn(ok));
    let answer = send(&telling, from_user("alice")).await;
    assert_eq!((answer.status, answer.body.as_str()), (OK, "ok"));
    assert_eq!(answer.header("ratelimit"), Some(r#""user";r=1;t=60"#));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=2;w=60"#));
    assert_eq!(answer.header("retry-after"), None);

    advance(Duration::from_millis(20_001)).await;
    let answer = send(&telling, from_user("alice")).await;
    assert_eq!(answer.header("ratelimit"), Some(r#""user";r=0;t=40"#));
}

#[tokio::test(start_paused = true)]
async fn cancelled_place_counts_as_remaining() {
    let layer = per_user(2, MemoryStore::new()).headers_on_success(true).cancel_if(|_| true);
    let service = layer.layer(service_fn(ok));
    for _ in 0..3 {
        let answer = send(&service, from_user("alice")).await;
        assert!(answer.header("ratelimit").unwrap().starts_with(r#""user";r=2"#));
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_excludes_entries_a_window_old() {
    let policy = Policy::new("user").quota(Quota::per_second(3)).quota(Quota::per_minute(100));
    let service = SlidingWindowLayer::new(policy, key::constant("all"), MemoryStore::new())
        .headers_on_success(true)
        .layer(service_fn(ok));
    send(&service, request(&[])).await;
    advance(Duration::from_secs(1)).await;
    let answer = send(&service, request(&[])).await;
    assert_eq!(
        answer.header("ratelimit"),
        Some(r#""user:3/1s";r=2;t=1, "user:100/60s";r=98;t=60"#)
    );
}

#[tokio::test(start_paused = true)]
async fn fields_of_the_inner_service_stay() {
    let inner = |_: Request<String>| async {
        let response = Response::builder().header("ratelimit", "own").body(String::new());
        Ok::<_, std::convert::Infallible>(response.unwrap())
    };
    let layer = per_user(2, MemoryStore::new()).headers_on_success(true);
    let answer = send(&layer.layer(service_fn(inner)), from_user("alice")).await;
    assert_eq!(answer.headers.get_all("ratelimit").iter().collect::<Vec<_>>(), ["own"]);
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=2;w=60"#));
}

#[tokio::test(start_paused = true)]
async fn custom_rejection_keeps_retry_after() {
    let service = per_user(1, MemoryStore::new())
        .on_rejection(|_, rejection| {
            let said = match rejection {
                Rejection::Denied(denied) => format!("wait {:?}", denied.retry_after()),
                other => format!("{}", other.status()),
            };
            let response = Response::builder().status(StatusCode::IM_A_TEAPOT);
            response.header("x-own", "yes").body(said).unwrap()
        })
        .layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);

    let answer = send(&service, from_user("alice")).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::IM_A_TEAPOT, "wait 60s"));
    assert_eq!(answer.header("x-own"), Some("yes"));
    assert_eq!(answer.header("content-type"), None);
    assert_eq!(answer.retry_after(), Some(60));
    assert_eq!(answer.header("ratelimit"), Some(r#""user";r=0;t=60"#));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=1;w=60"#));

    assert_eq!(send(&service, request(&[])).await.body, "401 Unauthorized");
    let twice = request(&[("x-user-id", "a"), ("x-user-id", "b")]);
    assert_eq!(send(&service, twice).await.body, "400 Bad Request");
}

#[tokio::test(start_paused = true)]
async fn headers_of_a_custom_rejection_stay() {
    let layer = per_user(1, MemoryStore::new()).on_rejection(|_, _| {
        let response = Response::builder().status(503).header("retry-after", "7");
        response.header("ratelimit", "hidden").body(String::new()).unwrap()
    });
    let answer = second(layer).await;
    assert_eq!(answer.headers.get_all("retry-after").iter().collect::<Vec<_>>(), ["7"]);
    assert_eq!(answer.headers.get_all("ratelimit").iter().collect::<Vec<_>>(), ["hidden"]);
}

#[tokio::test(start_paused = true)]
async fn default_rejection_can_be_amended() {
    let layer = per_user(1, MemoryStore::new()).on_rejection(|_, rejection| {
        let mut response = rejection.to_response();
        response.headers_mut().insert("x-own", "yes".parse().unwrap());
        response
    });
    let answer = second(layer).await;
    assert_eq!(answer.problem()["violated-policies"], json!(["user"]));
    assert_eq!((answer.header("x-own"), answer.retry_after()), (Some("yes"), Some(60)));
}

/// Fails with an error that holds the key.
fn broken() -> impl Store {
    let answer = |check: &Check| {
        let message = String::from_utf8_lossy(check.logs()[0].key.as_bytes()).into_owned();
        StoreFuture::ready(Err(StoreError::Unreachable { message }))
    };
    StubStore(answer, || ())
}

#[tokio::test(start_paused = true)]
async fn failing_store_is_503_never_429() {
    let service = per_user(1, broken()).layer(service_fn(ok));
    let answer = send(&service, from_user("alice")).await;
    assert_eq!(answer.status, FULL);
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(answer.problem()["type"], REDUCED);

    let shadow = per_user(1, broken()).shadow(true).layer(service_fn(ok));
    assert_eq!(status(&shadow, "alice").await, OK, "in shadow mode nothing is refused");
}

#[tokio::test(start_paused = true)]
async fn no_rejection_shows_a_key() {
    const SECRET: &str = "s3cr3t-user";
    let denied = per_user(1, MemoryStore::new()).layer(service_fn(ok));
    assert_eq!(status(&denied, SECRET).await, OK);
    let full = per_user(1, MemoryStore::with_capacity(0)).layer(service_fn(ok));
    let heavy = per_user(1, MemoryStore::new()).cost(|_| 2).layer(service_fn(ok));
    let broken = per_user(1, broken()).layer(service_fn(ok));
    let twice = || request(&[("x-user-id", SECRET), ("x-user-id", SECRET)]);

    for (answer, status) in [
        (send(&denied, from_user(SECRET)).await, TOO_MANY),
        (send(&full, from_user(SECRET)).await, FULL),
        (send(&heavy, from_user(SECRET)).await, TOO_MANY),
        (send(&broken, from_user(SECRET)).await, FULL),
        (send(&denied, twice()).await, StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(answer.status, status);
        assert!(!format!("{answer:?}").contains(SECRET), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_sees_the_request() {
    let layer = per_user(1, MemoryStore::new()).on_rejection(|head, rejection| {
        let language = head.headers.get("accept-language").map(|it| it.to_str().unwrap());
        let text = format!("{} {language:?} {:?}", head.uri.path(), rejection.retry_after());
        Response::new(text)
    });
    let service = layer.layer(service_fn(ok));
    let at = |user: &str| {
        let mut request = request(&[("x-user-id", user), ("accept-language", "eo")]);
        *request.uri_mut() = "/orders".parse().unwrap();
        request
    };
    assert_eq!(send(&service, at("alice")).await.body, "ok");
    assert_eq!(send(&service, at("alice")).await.body, r#"/orders Some("eo") Some(60s)"#);
    assert_eq!(send(&service, at("")).await.body, r#"/orders Some("eo") None"#);
}

#[tokio::test(start_paused = true)]
async fn rejection_may_be_any_axum_response() {
    let layer = per_user(1, MemoryStore::new()).on_rejection(|head, rejection| {
        let path = head.uri.path().to_owned();
        (rejection.status(), [("x-own", "yes")], axum::Json(json!({ "path": path })))
    });
    let answer = second(layer).await;
    assert_eq!((answer.status, answer.body.as_str()), (TOO_MANY, r#"{"path":"/"}"#));
    assert_eq!((answer.header("x-own"), answer.retry_after()), (Some("yes"), Some(60)));
}

#[tokio::test(start_paused = true)]
async fn rejection_body_may_come_in_parts() {
    let parts = |fails: bool| {
        per_user(1, MemoryStore::new()).on_rejection(move |_, _| {
            let part = move |at: u8| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if fails && at == 1 { Err("broken") } else { Ok(Bytes::from(format!("{at};"))) }
            };
            let body = tokio_stream::iter(0..3).then(part);
            Response::new(axum::body::Body::from_stream(body))
        })
    };
    assert_eq!(second(parts(false)).await.body, "0;1;2;");
    assert_eq!(second(parts(true)).await.body, "0;", "an error ends the body");
}

#[tokio::test(start_paused = true)]
async fn denials_are_those_of_the_moment() {
    let policy = PolicyHandle::new(
        Policy::new("user").quota(Quota::per_minute(1)).keep_for(Duration::from_secs(3_600)),
    );
    let service = by_user(&policy, MemoryStore::new()).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    let denial = async |service: &_, wait: u64, limit: u32, window: u64| {
        let answer = send(service, from_user("alice")).await;
        assert_eq!((answer.status, answer.retry_after()), (TOO_MANY, Some(wait)));
        let (limits, quotas) =
            (format!("\"user\";r=0;t={wait}"), format!("\"user\";q={limit};w={window}"));
        assert_eq!(answer.header("ratelimit"), Some(&*limits));
        assert_eq!(answer.header("ratelimit-policy"), Some(&*quotas));
        assert_eq!(answer.problem()["violated-policies"], json!(["user"]));
    };
    for wait in [60, 60, 59, 37, 36, 36, 1] {
        let now = send(&service, from_user("alice")).await.retry_after().unwrap();
        advance(Duration::from_secs(now - wait)).await;
        denial(&service, wait, 1, 60).await;
    }
    policy.set(Policy::new("user").quota(Quota::per_hour(1))).unwrap();
    denial(&service, 3_541, 1, 3_600).await;
    advance(Duration::from_secs(3_500)).await;
    denial(&service, 41, 1, 3_600).await;
}

#[tokio::test(start_paused = true)]
async fn full_log_is_checked_at_the_cost() {
    let cost = |parts: &Parts| if parts.headers.contains_key("x-two") { 2 } else { 1 };
    let service = per_user(2, MemoryStore::new()).cost(cost).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_secs(10)).await;
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(send(&service, from_user("alice")).await.retry_after(), Some(50));
    let two = request(&[("x-user-id", "alice"), ("x-two", "")]);
    assert_eq!(send(&service, two).await.retry_after(), Some(60));
}
