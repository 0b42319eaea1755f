//! Requests in flight: a place is given back when the body of the response is over, however it ends.

use std::future::ready;

use ::axum::body::Body;

use crate::*;

const LEASE: Duration = Duration::from_secs(30);
const LOG: &str = "tsw:{=alice}:downloads:30s:in_flight";

fn downloads() -> Policy {
    Policy::new("downloads").quota(Quota::new(1, LEASE)).in_flight()
}

fn layer(store: impl Store) -> SlidingWindowLayer {
    by_user(downloads(), store)
}

async fn free(store: &MemoryStore) -> u32 {
    left(downloads(), store).await
}

#[tokio::test(start_paused = true)]
async fn place_is_held_until_the_body_has_ended() {
    let (store, (service, mut bodies)) = (MemoryStore::new(), streaming::<Infallible>());
    let service = layer(store.clone()).layer(service);
    let mut response = call(&service, from_user("alice")).await;
    let mut sender = bodies.recv().await.unwrap();
    for _ in 0..10 {
        // Far longer than a lease.
        sleep(LEASE / 2).await;
        sender.send_data(Bytes::from_static(b"part")).await.unwrap();
        assert!(response.body_mut().frame().await.unwrap().is_ok());
        assert_eq!(free(&store).await, 0);
        assert_eq!(status(&service, "alice").await, TOO_MANY);
    }
    drop(sender);
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(free(&store).await, 1, "before the body is dropped");
}

/// A server may drop a body when the client has the last frame already, and sends its next request.
#[tokio::test(start_paused = true)]
async fn place_is_free_with_the_last_frame_and_not_before() {
    let trailers = Full::from("all").with_trailers(ready(Some(Ok(HeaderMap::new()))));
    let (mut sender, announced) = Channel::<Bytes, Infallible>::new(1);
    sender.send_data(Bytes::from_static(b"all")).await.unwrap();
    let echo = service_fn(async |request: Request<Body>| {
        let (head, body) = request.into_parts();
        let mut response = Response::new(body);
        *response.status_mut() = *head.extensions.get().unwrap();
        *response.headers_mut() = head.headers;
        Ok::<_, Infallible>(response)
    });
    // What a response costs: its bytes, and 100 if it has not ended by itself.
    let tokens = Policy::new("tokens").quota(Quota::per_minute(1_000)).budget();
    let cost = |end: ResponseEnd<'_>| {
        Some(u32::try_from(end.bytes).ok()? + if end.is_complete { 0 } else { 100 })
    };
    let unchanged = StatusCode::NOT_MODIFIED;
    for (method, version, status, length, body, frames, expected) in [
        (Method::GET, Version::HTTP_2, OK, 0, Body::empty(), 0, 0),
        (Method::GET, Version::HTTP_2, OK, 3, Body::new(trailers), 2, 3),
        (Method::GET, Version::HTTP_11, OK, 3, Body::new(announced), 1, 3),
        (Method::HEAD, Version::HTTP_11, OK, 3, Body::from("all"), 0, 100),
        (Method::GET, Version::HTTP_11, unchanged, 3, Body::from("all"), 0, 0),
    ] {
        let store = MemoryStore::new();
        let request = Request::builder().method(method).version(version).extension(status);
        let request = request.header("x-user-id", "alice").header("content-length", length);
        let limit = layer(store.clone()).rule(tokens.clone(), key::header("x-user-id"));
        let service = limit.settle_from_body(0, cost).layer(echo);
        let mut body = call(&service, request.body(body).unwrap()).await.into_body();
        for _ in 0..frames {
            assert_eq!(free(&store).await, 0, "{version:?}");
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(free(&store).await, 1, "{version:?}, {frames}: before the body is dropped");
        let left = left(tokens.clone(), &store).await;
        assert_eq!(1_000 - left, expected, "{version:?}, {frames}");
    }
}

/// Concurrent calls to Redis overtake each other, and the last frame waits for those that end the request.
#[tokio::test]
async fn next_request_comes_after_the_end_of_the_last_one_on_redis() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let tokens = Policy::new("tokens").quota(Quota::per_hour(1)).budget();
    let tokens = by_user(tokens, store.clone()).settle_from_body(0, |_| Some(0));
    for limit in [layer(store), tokens] {
        let service = limit.layer(service_fn(ok));
        let busy = |user: String, service| async move {
            loop {
                status(&service, &user).await;
            }
        };
        let users = (0..16).map(|user| format!("user-{user}"));
        let _busy: JoinSet<()> = users.map(|user| busy(user, service.clone())).collect();
        for round in 0..300 {
            assert_eq!(status(&service, "alice").await, OK, "round {round}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn handler_that_fails_gives_the_place_back() {
    type Failed = Result<Response<Empty<Bytes>>, &'static str>;
    let store = MemoryStore::new();
    let failing = service_fn(async |_: Request<String>| Failed::Err("failed"));
    let failed = layer(store.clone()).layer(failing).oneshot(from_user("alice")).await;
    assert_eq!(failed.err(), Some("failed"));
    assert_eq!(free(&store).await, 1);
    let panicking = service_fn(async |_: Request<String>| -> Failed { panic!("the handler") });
    let request = layer(store.clone()).layer(panicking).oneshot(from_user("alice"));
    assert!(tokio::spawn(request).await.unwrap_err().is_panic());
    assert_eq!(free(&store).await, 1);
}

#[tokio::test]
async fn client_that_hangs_up_during_the_check_leaves_no_place() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    let user = Policy::new("user").quota(Quota::per_hour(5));
    let limit = layer(store.clone()).rule(user.clone(), key::header("x-user-id"));
    let mut request = task::spawn(limit.layer(service_fn(ok)).oneshot(from_user("alice")));
    assert_pending!(request.poll());
    redis.has_entries(LOG, 1).await;
    drop(request);
    let began = Instant::now();
    redis.has_entries(LOG, 0).await;
    assert!(began.elapsed() < LEASE / 2, "it does not wait for the end of the lease");
    assert_eq!(left(user, &store).await, 4, "it counts as a request");
}

#[tokio::test(start_paused = true)]
async fn cancelled_response_holds_its_place_until_its_body_has_ended() {
    let (store, (service, mut bodies)) = (MemoryStore::new(), streaming::<Infallible>());
    let user = Policy::new("user").quota(Quota::per_hour(5));
    let limit = layer(store.clone()).rule(user.clone(), key::header("x-user-id"));
    let limit = limit.cancel_if(|response| response.status() == OK).headers_on_success(true);
    let service = limit.layer(service);
    let first = call(&service, from_user("alice")).await;
    assert_eq!(first.headers()["ratelimit"], r#""downloads";r=0, "user";r=5;t=3600"#);
    let _sender = bodies.recv().await.unwrap();
    assert_eq!(left(user, &store).await, 5, "it does not count");
    assert_eq!(status(&service, "alice").await, TOO_MANY, "the first body is being sent");
    drop(first);
    assert_eq!(free(&store).await, 1);
}

#[tokio::test(start_paused = true)]
async fn denial_names_no_time() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(downloads(), store.clone());
    let _first = limiter.acquire("alice", Duration::ZERO).await.unwrap();
    let site = Policy::new("site").quota(Quota::per_minute(100)).byte_budget();
    let site = site.penalty(Penalty::manual());
    let limit = layer(store.clone()).rule(site.clone(), key::constant("all"));
    let service = limit.headers(RateLimitHeaders::Both).layer(service_fn(ok));
    let denied = send(&service, from_user("alice")).await;
    assert_eq!((denied.status, denied.retry_after()), (TOO_MANY, None));
    let policy =
        r#""downloads";q=1;qu="concurrent-requests", "site";q=100;qu="content-bytes";w=60"#;
    assert_eq!(denied.header("ratelimit-policy"), Some(policy));
    assert_eq!(denied.header("ratelimit"), Some(r#""downloads";r=0, "site";r=100"#));
    assert_eq!(denied.header("x-ratelimit-limit"), Some("100"), "of what has a window only");
    // Nor does that of a key which is banned beside it: after the ban the place may still be taken.
    Bans::new(site, store).impose("all", Duration::from_secs(2), "").await.unwrap();
    let banned = send(&service, from_user("alice")).await;
    assert_eq!((banned.status, banned.retry_after()), (StatusCode::FORBIDDEN, None));
}

#[tokio::test(start_paused = true)]
async fn distinct_values_have_no_field_but_a_wait() {
    let accounts =
        Policy::new("accounts").quota(Quota::new(1, Duration::from_secs(600))).distinct();
    let service = alone(Quota::per_minute(5))
        .rule_distinct(accounts, key::constant("address"), key::header("x-user-id"))
        .layer(service_fn(ok));
    for _ in 0..2 {
        assert_eq!(status(&service, "alice").await, OK);
    }
    let denied = send(&service, from_user("bob")).await;
    assert_eq!((denied.status, denied.retry_after()), (TOO_MANY, Some(600)));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"default\";q=5;w=60"));
    assert_eq!(send(&service, request(&[])).await.status, StatusCode::UNAUTHORIZED);
}

/// A worker gives its job, and the permit or the body with it, to a thread pool of its own, such as that of rayon.
#[tokio::test(flavor = "multi_thread")]
async fn place_that_is_left_on_another_thread_comes_free() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let (service, mut bodies) = streaming::<Infallible>();
    let response = call(&layer(store.clone()).layer(service), from_user("alice")).await;
    let _sender = bodies.recv().await.unwrap();
    std::thread::spawn(move || drop(response)).join().unwrap();
    let limiter = Limiter::new(downloads(), store);
    let next = async || limiter.acquire("alice", Duration::from_secs(2)).await;
    let permit = next().await.expect("the runtime runs, and the lease is longer");
    std::thread::spawn(move || drop(permit)).join().unwrap();
    let next = next().await;
    assert!(next.is_ok(), "that of a permit: {next:?}");
}

/// The handler has not run, and nobody is left who would give the place back.
#[tokio::test(start_paused = true)]
async fn panic_of_the_observer_gives_the_place_back() {
    let store = MemoryStore::new();
    let limit = layer(store.clone()).on_decision(|_| panic!("the audit log"));
    let request = tokio::spawn(limit.layer(service_fn(ok)).oneshot(from_user("alice")));
    assert!(request.await.unwrap_err().is_panic());
    assert_eq!(free(&store).await, 1, "for a lease of {LEASE:?}");
}
