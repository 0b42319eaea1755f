//! The layer's own responses: what they say, what they hide, and how to replace them.

use tonic::codegen::tokio_stream::{self, StreamExt};

use crate::*;

const FULL: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn one_a_minute() -> Policy {
    Policy::new("user").quota(Quota::per_minute(1))
}

/// Returns the answer to the second request of a user. The first one shows no quotas.
async fn second(layer: SlidingWindowLayer) -> HttpResponse {
    let service = layer.layer(service_fn(ok));
    let first = send(&service, from_user("alice")).await;
    assert_eq!((first.status, first.header("ratelimit")), (OK, None));
    send(&service, from_user("alice")).await
}

/// Law 3: who waits as long as the denial says is admitted.
#[tokio::test(start_paused = true)]
async fn denial_names_every_full_policy_and_the_longest_wait() {
    let ip = Policy::new("ip").quota(Quota::per_hour(1));
    let site = Policy::new("site").quota(Quota::per_second(1000));
    let layer = alone(one_a_minute()).rule(ip, key::constant("192.0.2.7"));
    let service = layer.rule(site, key::constant("all")).layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    advance(Duration::from_millis(10_900)).await;

    let answer = send(&service, from_user("alice")).await;
    assert_eq!(answer.status, TOO_MANY);
    assert_eq!(answer.header("retry-after"), Some("3590"), "3,589.1 s, rounded up");
    let policies = r#""user";q=1;w=60, "ip";q=1;w=3600, "site";q=1000;w=1"#;
    assert_eq!(answer.header("ratelimit-policy"), Some(policies));
    let limits = r#""user";r=0;t=50, "ip";r=0;t=3590, "site";r=1000"#;
    assert_eq!(answer.header("ratelimit"), Some(limits));
    let document = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["user", "ip"],
    });
    assert_eq!(answer.document(), document);
    advance(Duration::from_secs(3_589)).await;
    assert_eq!(status(&service, "alice").await, TOO_MANY, "a second less is too short");
    advance(Duration::from_secs(1)).await;
    assert_eq!(status(&service, "alice").await, OK);
}

/// Checks alice until she is denied.
async fn denied(policy: Policy, store: MemoryStore) -> Denied {
    let limiter = Limiter::new(policy, store);
    loop {
        if let Decision::Denied(denied) = limiter.check("alice").await.unwrap() {
            return denied;
        }
    }
}

/// A handler and `on_rejection` can send what the layer sends.
#[tokio::test(start_paused = true)]
async fn response_of_a_handler_has_every_field() {
    let store = MemoryStore::new();
    let by_layer = by_user(one_a_minute(), store.clone());
    assert_eq!(second(by_layer.clone()).await.retry_after(), Some(60));
    advance(Duration::from_millis(23_500)).await;
    let service = by_layer.layer(service_fn(ok));
    let of_layer = send(&service, from_user("alice")).await;

    let denied = denied(one_a_minute(), store).await;
    let (head, body) = denied.to_response().into_parts();
    assert_eq!((head.status, head.headers, body), (TOO_MANY, of_layer.headers, of_layer.body));

    let of_rejection = Rejection::Denied(denied).to_response();
    assert_eq!(of_rejection.headers()["retry-after"], "37");
    assert!(!of_rejection.headers().contains_key("ratelimit"), "a layer may have other fields");

    let banned = one_a_minute().penalty("1/1h:2m".parse().unwrap());
    let response = self::denied(banned, MemoryStore::new()).await.to_response();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(response.headers()["retry-after"], "120");
    assert!(!response.headers().contains_key("ratelimit"));
}

#[tokio::test(start_paused = true)]
async fn custom_rejection_gets_the_fields_that_it_lacks() {
    let layer = alone(one_a_minute()).on_rejection(|head, rejection| {
        let body = format!("{} {:?}", head.uri.path(), rejection.retry_after());
        let response = Response::builder().status(StatusCode::IM_A_TEAPOT);
        response.header("ratelimit", "own").body(body).unwrap()
    });
    let service = layer.layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    let answer = send(&service, from_user("alice")).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::IM_A_TEAPOT, "/ Some(60s)"));
    assert_eq!(answer.header("cache-control"), Some("no-store"), "no cache may keep it");
    assert_eq!((answer.header("content-type"), answer.retry_after()), (None, Some(60)));
    assert_eq!(answer.headers.get_all("ratelimit").iter().collect::<Vec<_>>(), ["own"]);
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=1;w=60"#));
    assert_eq!(send(&service, request(&[])).await.body, "/ None");

    // There it would be the time before the client follows.
    let redirect = alone(one_a_minute()).on_rejection(|_, _| {
        let response = Response::builder().status(303).header("location", "/busy.html");
        response.body(String::new()).unwrap()
    });
    let answer = second(redirect).await;
    assert_eq!((answer.retry_after(), answer.header("ratelimit")), (None, None));

    let amended = alone(one_a_minute()).on_rejection(|_, rejection| {
        let mut response = rejection.to_response();
        response.headers_mut().insert("retry-after", "99".parse().unwrap());
        response
    });
    let answer = second(amended).await;
    assert_eq!(answer.document()["violated-policies"], json!(["user"]));
    assert_eq!(answer.headers.get_all("retry-after").iter().collect::<Vec<_>>(), ["99"]);
}

#[tokio::test(start_paused = true)]
async fn no_rejection_shows_a_key() {
    const SECRET: &str = "s3cr3t-user";
    let denied = alone(one_a_minute()).layer(service_fn(ok));
    assert_eq!(status(&denied, SECRET).await, OK);
    let full = by_user(one_a_minute(), MemoryStore::with_capacity(0)).layer(service_fn(ok));
    let heavy = alone(one_a_minute().budget()).cost(|_| 2).layer(service_fn(ok));
    // Fails with an error that holds the key.
    let failing = StubStore(|check: &Check| {
        let message = String::from_utf8_lossy(check.logs()[0].key.as_bytes()).into_owned();
        StoreFuture::ready(Err(StoreError::Unreachable { message }))
    });
    let failing = by_user(one_a_minute(), failing);
    let shadow = failing.clone().shadow(true).layer(service_fn(ok));
    assert_eq!(status(&shadow, SECRET).await, OK, "in shadow mode nothing is refused");
    let broken = failing.layer(service_fn(ok));
    let twice = request(&[("x-user-id", SECRET), ("x-user-id", SECRET)]);

    for (answer, status) in [
        (send(&denied, from_user(SECRET)).await, TOO_MANY),
        (send(&full, from_user(SECRET)).await, FULL),
        (send(&heavy, from_user(SECRET)).await, TOO_MANY),
        (send(&broken, from_user(SECRET)).await, FULL),
        (send(&denied, twice).await, StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(answer.status, status);
        assert!(!format!("{answer:?}").contains(SECRET), "{answer:?}");
        if status == FULL {
            assert_eq!((answer.problem(503).as_str(), answer.retry_after()), (REDUCED, Some(1)));
        }
    }
}

/// A mistake of whoever chose the store. No failure policy makes an admission of it.
#[tokio::test]
async fn check_that_the_store_does_not_support_is_a_500() {
    let unsupported =
        |_: &Check| StoreFuture::ready(Err(StoreError::Unsupported { what: "penalties" }));
    for policy in [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed] {
        let layer = by_user(one_a_minute(), StubStore(unsupported)).failure_policy(policy);
        let answer = send(&layer.layer(service_fn(ok)), from_user("alice")).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{policy}");
        assert_eq!(answer.retry_after(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_body_may_come_in_parts() {
    let parts = |fails: bool| {
        alone(one_a_minute()).on_rejection(move |_, _| {
            let part = move |at: u8| async move {
                sleep(Duration::from_secs(1)).await;
                if fails && at == 1 { Err("broken") } else { Ok(Bytes::from(format!("{at};"))) }
            };
            let body = tokio_stream::iter(0..3).then(part);
            Response::new(::axum::body::Body::from_stream(body))
        })
    };
    assert_eq!(second(parts(false)).await.body, "0;1;2;");
    assert_eq!(second(parts(true)).await.body, "0;", "an error ends the body");
}
