//! Requests in flight: a place is given back when the body of the response is over, however it ends.

use std::future::ready;

use ::axum::body::Body;

use crate::*;

const LEASE: Duration = Duration::from_secs(30);

fn downloads() -> Policy {
    Policy::new("downloads").quota(Quota::new(1, LEASE)).in_flight()
}

fn layer(store: impl Store) -> SlidingWindowLayer {
    by_user(downloads(), store)
}

async fn free(store: &MemoryStore) -> u32 {
    Limiter::new(downloads(), store.clone()).peek("alice").await.unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn place_is_held_until_the_body_has_ended() {
    let (store, (service, mut bodies)) = (MemoryStore::new(), streaming::<Infallible>());
    let service = layer(store.clone()).layer(service);
    let mut response = service.clone().oneshot(from_user("alice")).await.unwrap();
    let mut sender = bodies.recv().await.unwrap();
    for _ in 0..10 {
        // Far longer than a lease.
        sleep(LEASE / 2).await;
        sender.send_data(Bytes::from_static(b"part")).await.unwrap();
        assert!(response.body_mut().frame().await.unwrap().is_ok());
        assert_eq!(free(&store).await, 0);
        let other = service.clone().oneshot(from_user("alice")).await.unwrap();
        assert_eq!(other.status(), TOO_MANY);
    }
    drop(sender);
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(free(&store).await, 1, "before the body is dropped");
    assert_eq!(service.oneshot(from_user("alice")).await.unwrap().status(), OK);
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
        *response.headers_mut() = head.headers;
        Ok::<_, Infallible>(response)
    });
    // What a response costs: its bytes, and 100 if it has not ended by itself.
    let tokens = Policy::new("tokens").quota(Quota::per_minute(1_000)).budget();
    let cost = |end: ResponseEnd<'_>| {
        Some(u32::try_from(end.bytes).ok()? + if end.is_complete { 0 } else { 100 })
    };
    for (method, version, length, body, frames, expected) in [
        (Method::GET, Version::HTTP_2, 0, Body::empty(), 0, 0),
        (Method::GET, Version::HTTP_2, 3, Body::new(trailers), 2, 3),
        (Method::GET, Version::HTTP_11, 3, Body::new(announced), 1, 3),
        (Method::HEAD, Version::HTTP_11, 3, Body::from("all"), 0, 100),
    ] {
        let store = MemoryStore::new();
        let request = Request::builder().method(method).version(version);
        let request = request.header("x-user-id", "alice");
        let request = request.header("content-length", length).body(body).unwrap();
        let limit = layer(store.clone()).rule(tokens.clone(), key::header("x-user-id"));
        let limit = limit.settle_from_body(0, cost);
        let response = limit.layer(echo).oneshot(request).await.unwrap();
        let mut body = response.into_body();
        for _ in 0..frames {
            assert_eq!(free(&store).await, 0, "{version:?}");
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(free(&store).await, 1, "{version:?}, {frames}: before the body is dropped");
        let left = Limiter::new(tokens.clone(), store).peek("alice").await.unwrap().remaining();
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
    let store = MemoryStore::new();
    let failing = service_fn(async |_: Request<String>| Err::<Response<Empty<Bytes>>, _>("failed"));
    let failed = layer(store.clone()).layer(failing).oneshot(from_user("alice")).await;
    assert_eq!(failed.err(), Some("failed"));
    assert_eq!(free(&store).await, 1);

    let panicking = service_fn(async |request: Request<String>| {
        assert!(request.body().is_empty() && request.uri() == "/other", "the handler panics");
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let request = layer(store.clone()).layer(panicking).oneshot(from_user("alice"));
    assert!(tokio::spawn(request).await.unwrap_err().is_panic());
    assert_eq!(free(&store).await, 1);
}

#[tokio::test]
async fn client_that_hangs_up_during_the_check_leaves_no_place() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    let user = Policy::new("user").quota(Quota::per_hour(5));
    let service =
        layer(store.clone()).rule(user.clone(), key::header("x-user-id")).layer(service_fn(ok));
    let mut request = task::spawn(service.oneshot(from_user("alice")));
    assert_pending!(request.poll());
    redis.has_entries("tsw:{=alice}:downloads:30s:in_flight", 1).await;
    drop(request);
    let began = Instant::now();
    redis.has_entries("tsw:{=alice}:downloads:30s:in_flight", 0).await;
    assert!(began.elapsed() < LEASE / 2, "it does not wait for the end of the lease");
    let users = Limiter::new(user, store);
    assert_eq!(users.peek("alice").await.unwrap().remaining(), 4, "it counts as a request");
}

#[tokio::test(start_paused = true)]
async fn cancelled_response_holds_its_place_until_its_body_has_ended() {
    let (store, (service, mut bodies)) = (MemoryStore::new(), streaming::<Infallible>());
    let user = Policy::new("user").quota(Quota::per_hour(5));
    let limit = layer(store.clone()).rule(user.clone(), key::header("x-user-id"));
    let limit = limit.cancel_if(|response| response.status() == OK).headers_on_success(true);
    let service = limit.layer(service);
    let first = service.clone().oneshot(from_user("alice")).await.unwrap();
    assert_eq!(first.headers()["ratelimit"], r#""downloads";r=0, "user";r=5;t=3600"#);
    let _sender = bodies.recv().await.unwrap();
    let users = Limiter::new(user, store.clone());
    assert_eq!(users.peek("alice").await.unwrap().remaining(), 5, "it does not count");
    let second = service.oneshot(from_user("alice")).await.unwrap();
    assert_eq!(second.status(), TOO_MANY, "the first body is being sent");
    drop(first);
    assert_eq!(free(&store).await, 1);
}

#[tokio::test(start_paused = true)]
async fn denial_names_no_time() {
    for (shown, policy, admitted, denied) in [
        (
            RateLimitHeaders::Draft11,
            Some(r#""downloads";q=1;qu="concurrent-requests", "ip";q=100;qu="content-bytes";w=60"#),
            Some(r#""downloads";r=0, "ip";r=99;t=60"#),
            Some(r#""downloads";r=0, "ip";r=99"#),
        ),
        (RateLimitHeaders::Legacy, None, None, None),
    ] {
        let (store, (service, _bodies)) = (MemoryStore::new(), streaming::<Infallible>());
        let ip = Policy::new("ip").quota(Quota::per_minute(100)).byte_budget();
        let layer = layer(store).rule(ip, key::constant("all")).headers(shown);
        let service = layer.headers_on_success(true).layer(service);
        let first = service.clone().oneshot(from_user("alice")).await.unwrap();
        let second = service.oneshot(from_user("alice")).await.unwrap();
        assert_eq!(second.status(), TOO_MANY);
        let field = |response: &Response<_>, name: &str| {
            let value = response.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        assert_eq!(field(&second, "retry-after"), None);
        for (response, limit) in [(&first, admitted), (&second, denied)] {
            assert_eq!(field(response, "ratelimit-policy").as_deref(), policy);
            assert_eq!(field(response, "ratelimit").as_deref(), limit);
        }
        let legacy = field(&second, "x-ratelimit-limit");
        assert_eq!(legacy.is_some(), shown == RateLimitHeaders::Legacy, "{legacy:?}");
        assert!(legacy.is_none_or(|limit| limit == "100"), "of what has a window only");
    }
    // Nor does that of a key which is banned beside it: after the ban the place may still be taken.
    let (store, (service, _bodies)) = (MemoryStore::new(), streaming::<Infallible>());
    let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(Penalty::manual());
    let service = layer(store.clone()).rule(user.clone(), key::header("x-user-id")).layer(service);
    let _first = service.clone().oneshot(from_user("alice")).await.unwrap();
    Bans::new(user, store).impose("alice", Duration::from_secs(2), "").await.unwrap();
    let banned = service.clone().oneshot(from_user("alice")).await.unwrap();
    assert_eq!(banned.status(), StatusCode::FORBIDDEN);
    assert_eq!(banned.headers().get("retry-after"), None);
    let mut call = from_user("alice");
    *call.method_mut() = Method::POST;
    call.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let banned = service.oneshot(call).await.unwrap();
    assert_eq!(banned.headers()["grpc-status"], "7");
    assert_eq!(banned.headers().get("grpc-retry-pushback-ms"), None);
}

#[tokio::test(start_paused = true)]
async fn distinct_values_have_no_field_but_a_wait() {
    let accounts =
        Policy::new("accounts").quota(Quota::new(1, Duration::from_secs(600))).distinct();
    let service = by_user(Quota::per_minute(5), MemoryStore::new())
        .rule_distinct(accounts, key::constant("address"), key::header("x-user-id"))
        .layer(service_fn(ok));
    for user in ["alice", "alice", "bob"] {
        let response = service.clone().oneshot(from_user(user)).await.unwrap();
        let is_denied = response.status() == TOO_MANY;
        assert_eq!(is_denied, user == "bob");
        if is_denied {
            assert_eq!(response.headers()["retry-after"], "600");
            assert_eq!(response.headers()["ratelimit-policy"], "\"default\";q=5;w=60");
        }
    }
    let anonymous = service.oneshot(request(&[])).await.unwrap();
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
}

/// A worker gives its job, and the permit or the body with it, to a thread pool of its own, such as that of rayon.
#[tokio::test(flavor = "multi_thread")]
async fn place_that_is_left_on_another_thread_comes_free() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let (service, mut bodies) = streaming::<Infallible>();
    let response = layer(store.clone()).layer(service).oneshot(from_user("alice")).await.unwrap();
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
    let service =
        layer(store.clone()).on_decision(|_| panic!("the audit log")).layer(service_fn(ok));
    let request = tokio::spawn(service.oneshot(from_user("alice")));
    assert!(request.await.unwrap_err().is_panic());
    assert_eq!(free(&store).await, 1, "for a lease of {LEASE:?}");
}
