//! gRPC requests: the layer's own responses field by field, and what a tonic client gets.

use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tonic_types::StatusExt;

use crate::*;

const GRPC: &str = "application/grpc";

fn policy() -> Policy {
    let policy = Policy::new("user").quota(Quota::per_second(3)).quota(Quota::per_minute(1));
    policy.penalty("3/1h:1h".parse().unwrap())
}

fn per_user(store: impl Store) -> SlidingWindowLayer {
    by_user(policy(), store)
}

fn grpc_request(content_type: &str, users: &[&str]) -> Request<String> {
    let request = Request::post("/shop.Orders/Place").header("content-type", content_type);
    let with_user =
        |request: http::request::Builder, user: &&str| request.header("x-user-id", *user);
    let request = users.iter().fold(request, with_user);
    request.body(String::new()).unwrap()
}

/// Returns the response to the last of several requests.
async fn nth(layer: SlidingWindowLayer, count: usize, users: &[&str]) -> HttpResponse {
    let service = layer.layer(service_fn(ok));
    for _ in 1..count {
        send(&service, grpc_request(GRPC, users)).await;
    }
    send(&service, grpc_request(GRPC, users)).await
}

#[track_caller]
fn check(answer: &HttpResponse, code: u16, wait: Option<Duration>) {
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), Some(GRPC));
    assert_eq!((answer.body.as_str(), answer.header("retry-after")), ("", None));
    assert_eq!(answer.header("grpc-status"), Some(code.to_string().as_str()));
    let status = Status::from_header_map(&answer.headers).expect("a status");
    assert_eq!(status.get_details_retry_info().and_then(|it| it.retry_delay), wait);
    let pushback = wait.map_or("-1".to_owned(), |wait| wait.as_millis().to_string());
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some(pushback.as_str()));
}

#[tokio::test(start_paused = true)]
async fn each_rejection_has_a_grpc_status() {
    let minute = Some(Duration::from_secs(60));
    let denied = nth(per_user(MemoryStore::new()), 2, &["alice"]).await;
    check(&denied, 8, minute);
    let message = "Request cannot be satisfied as assigned quota has been exceeded: user:1/60s";
    assert_eq!(denied.header("grpc-message"), Some(message));
    let quotas = r#""user:3/1s";r=2, "user:1/60s";r=0;t=60"#;
    assert_eq!(denied.header("ratelimit"), Some(quotas));
    let costly = by_user(policy().budget(), MemoryStore::new()).cost(|_| 2);
    let impossible = nth(costly, 1, &["alice"]).await;
    check(&impossible, 8, None);

    let store = MemoryStore::new();
    let hour = Duration::from_secs(3_600);
    Bans::new(policy(), store.clone()).impose("mallory", hour, "spam").await.unwrap();
    let banned = nth(per_user(store.clone()), 1, &["mallory"]).await;
    check(&banned, 7, Some(hour));
    assert!(banned.header("grpc-message").unwrap().ends_with("pattern: user"));
    assert_eq!(banned.header("ratelimit"), None);
    let on_ban = OnBan::Reject(StatusCode::TOO_MANY_REQUESTS);
    check(&nth(per_user(store).on_ban(on_ban), 1, &["mallory"]).await, 8, Some(hour));

    let missing = nth(per_user(MemoryStore::new()), 1, &[]).await;
    check(&missing, 16, None);
    let message = "The request has no key for a rate limit";
    assert_eq!(missing.header("grpc-message"), Some(message));
    for (status, code) in [(403, 7), (404, 5), (418, 2), (501, 12)] {
        let missing = MissingKey::Reject(StatusCode::from_u16(status).unwrap());
        let layer = per_user(MemoryStore::new()).on_missing_key(missing);
        check(&nth(layer, 1, &[]).await, code, None);
    }
    let invalid = nth(per_user(MemoryStore::new()), 1, &["a", "b"]).await;
    check(&invalid, 3, None);
    let message = "The request's key for a rate limit is ambiguous or malformed";
    assert_eq!(invalid.header("grpc-message"), Some(message));
    let layer = SlidingWindowLayer::new(policy(), key::peer_ip(), MemoryStore::new());
    check(&nth(layer, 1, &[]).await, 13, None);
    let own = |_: &Parts| Err(KeyError::NotProvided { fix: "100 % café" });
    let layer = SlidingWindowLayer::new(policy(), own, MemoryStore::new());
    assert_eq!(nth(layer, 1, &[]).await.header("grpc-message"), Some("100 %25 caf%C3%A9"));
    let broken = StubStore(|_: &_| StoreFuture::ready(Err(StoreError::Timeout)));
    check(&nth(per_user(broken), 1, &["alice"]).await, 14, Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn long_wait_is_no_pushback() {
    let policy = Policy::new("user").quota(Quota::new(1, Duration::from_secs(30 * 86_400)));
    let service = by_user(policy, MemoryStore::new()).layer(service_fn(ok));
    send(&service, grpc_request(GRPC, &["alice"])).await;
    let nanoseconds = Duration::from_micros(1_500);
    advance(nanoseconds).await;
    let answer = send(&service, grpc_request(GRPC, &["alice"])).await;
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("-1"), "it has 32 bits");
    let status = Status::from_header_map(&answer.headers).unwrap();
    let delay = status.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(delay, Some(Duration::from_secs(30 * 86_400) - nanoseconds));
}

/// How long requests in flight take, nobody knows.
#[tokio::test(start_paused = true)]
async fn client_behind_requests_in_flight_chooses_its_pause_itself() {
    let (store, jobs) = (MemoryStore::new(), Policy::from(Quota::per_minute(1)).in_flight());
    assert!(admit(&Limiter::new(jobs.clone(), store.clone()), "alice").await);
    let denied = nth(by_user(jobs, store), 1, &["alice"]).await;
    assert_eq!(denied.header("grpc-status"), Some("8"));
    assert_eq!(denied.header("grpc-retry-pushback-ms"), None, "-1 would forbid a retry");
}

#[tokio::test(start_paused = true)]
async fn trailers_only_response_ends_at_once() {
    let service = per_user(MemoryStore::new()).layer(service_fn(ok));
    let response = service.oneshot(grpc_request(GRPC, &[])).await.unwrap();
    assert!(http_body::Body::is_end_stream(response.body()), "END_STREAM is on the headers");
    assert!(response.into_body().collect().await.unwrap().trailers().is_none());
}

#[tokio::test(start_paused = true)]
async fn content_type_decides_what_is_grpc() {
    let service = per_user(MemoryStore::new()).layer(service_fn(ok));
    for (sent, received) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("Application/gRPC+json", "application/grpc"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
    ] {
        let answer = send(&service, grpc_request(sent, &[])).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-type"), Some(received));
        assert_eq!(answer.header("grpc-status"), Some("16"), "{sent}");
    }
    let json = send(&service, grpc_request("application/json", &[])).await;
    assert_eq!((json.status, json.header("grpc-status")), (StatusCode::UNAUTHORIZED, None));
    let mut get = grpc_request(GRPC, &[]);
    *get.method_mut() = http::Method::GET;
    assert_eq!(send(&service, get).await.status, StatusCode::UNAUTHORIZED, "gRPC is POST");
}

#[tokio::test(start_paused = true)]
async fn grpc_gets_no_response_it_cannot_read() {
    let html = per_user(MemoryStore::new()).on_rejection(|_, rejection| {
        Response::builder().status(rejection.status()).body("<h1>full</h1>".to_owned()).unwrap()
    });
    check(&nth(html, 1, &[]).await, 16, None);
    let own = per_user(MemoryStore::new()).on_rejection(|_, rejection| {
        let mut response = rejection.to_grpc_response();
        response.headers_mut().insert("grpc-message", "own".parse().unwrap());
        response
    });
    let answer = nth(own, 2, &["alice"]).await;
    check(&answer, 8, Some(Duration::from_secs(60)));
    assert_eq!(answer.header("grpc-message"), Some("own"));
}

/// A client says that it speaks gRPC, so that the layer within responds with 200. It is not one whose token is right.
#[tokio::test(start_paused = true)]
async fn failures_count_whatever_the_client_says_it_speaks() {
    let store = MemoryStore::new();
    let failures = by_user(Quota::per_hour(2), store.clone());
    let failures = failures.cancel_if(|response| response.status() != StatusCode::UNAUTHORIZED);
    let token = SlidingWindowLayer::new(Quota::per_minute(5), key::bearer(|_| None), store);
    let service = failures.layer(token.layer(service_fn(ok)));
    for code in [Code::Unauthenticated, Code::Unauthenticated, Code::ResourceExhausted] {
        let answer = send(&service, grpc_request(GRPC, &["mallory"])).await;
        assert_eq!(Status::from_header_map(&answer.headers).unwrap().code(), code);
    }
}

/// A call that fails without a message has its status in the headers.
#[tokio::test(start_paused = true)]
async fn cancel_if_sees_the_status_of_a_call() {
    let ok = |response: &Response<()>| !response.headers().contains_key("grpc-status");
    let layer = by_user(Quota::per_hour(2), MemoryStore::new()).cancel_if(ok);
    let (_, health) = health_reporter();
    let mut client = HealthClient::new(layer.layer(health));
    let mut call = async |service: &str| {
        let service = service.to_owned();
        let mut request = tonic::Request::new(HealthCheckRequest { service });
        request.metadata_mut().insert("x-user-id", "alice".parse().unwrap());
        client.check(request).await
    };
    for _ in 0..5 {
        call("").await.unwrap();
    }
    for expected in [Code::NotFound, Code::NotFound, Code::ResourceExhausted] {
        let status = call("unknown").await.unwrap_err();
        assert_eq!(status.code(), expected, "only failed calls count");
        let has_wait = status.get_details_retry_info().is_some_and(|it| it.retry_delay.is_some());
        assert_eq!(has_wait, expected == Code::ResourceExhausted);
    }
}
