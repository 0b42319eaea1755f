//! gRPC requests: the layer's own responses field by field, and what a tonic client gets.

use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tonic_types::StatusExt;

use crate::*;

const GRPC: &str = "application/grpc";
const FULL: &str = "Request cannot be satisfied as assigned quota has been exceeded: user:1/60s";
const NO_KEY: &str = "The request has no key for a rate limit";
/// How long a client waits between two requests.
const PAUSE: Duration = Duration::from_micros(1_500);

fn policy() -> Policy {
    let policy = Policy::new("user").quota(Quota::per_second(3)).quota(Quota::per_minute(1));
    policy.penalty("3/1h:1h".parse().unwrap())
}

fn grpc_request(content_type: &str, users: &[&str]) -> Request<String> {
    let mut headers = vec![("content-type", content_type)];
    headers.extend(users.iter().map(|user| ("x-user-id", *user)));
    let mut request = request(&headers);
    *request.method_mut() = Method::POST;
    request
}

/// Returns the response to the last of several requests.
async fn nth(layer: SlidingWindowLayer, count: usize, users: &[&str]) -> HttpResponse {
    let service = layer.layer(service_fn(ok));
    for _ in 1..count {
        send(&service, grpc_request(GRPC, users)).await;
        advance(PAUSE).await;
    }
    send(&service, grpc_request(GRPC, users)).await
}

#[track_caller]
fn check(answer: &HttpResponse, code: u16, wait: Option<Duration>, message: &str) {
    assert_eq!(answer.status, OK);
    assert_eq!(answer.header("content-type"), Some(GRPC));
    assert_eq!((answer.body.as_str(), answer.header("retry-after")), ("", None));
    assert_eq!(answer.header("grpc-status"), Some(code.to_string().as_str()));
    assert_eq!(answer.header("grpc-message"), Some(message));
    let status = Status::from_header_map(&answer.headers).expect("a status");
    assert_eq!(status.get_details_retry_info().and_then(|it| it.retry_delay), wait);
    // It has 32 bits.
    let pushback = wait.and_then(|wait| i32::try_from(wait.as_micros().div_ceil(1_000)).ok());
    let pushback = pushback.unwrap_or(-1).to_string();
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some(pushback.as_str()));
}

#[tokio::test(start_paused = true)]
async fn each_rejection_has_a_grpc_status() {
    let [minute, hour, month] = [60, 3_600, 30 * 86_400].map(Duration::from_secs);
    let store = MemoryStore::new();
    Bans::new(policy(), store.clone()).impose("mallory", hour, "spam").await.unwrap();
    let banned = || by_user(policy(), store.clone());
    let monthly = Policy::new("user").quota(Quota::per_second(3)).quota(Quota::new(1, month));
    let missing = |status| {
        let status = StatusCode::from_u16(status).unwrap();
        alone(policy()).on_missing_key(MissingKey::Reject(status))
    };
    let own = |_: &Parts| Err(KeyError::NotProvided { fix: "100 % café" });
    let broken = StubStore(|_: &_| StoreFuture::ready(Err(StoreError::Timeout)));
    let abnormal = "Request not satisfied due to detection of abnormal request pattern: user";
    let ambiguous = "The request's key for a rate limit is ambiguous or malformed";
    let reduced = "Request cannot be satisfied due to temporary server capacity constraints";
    let impossible = "a request of cost 2 can never pass a limit of 1";
    let costly = alone(policy().budget()).cost(|_| 2);
    let own = SlidingWindowLayer::new(policy(), own, MemoryStore::new());
    let alice = &["alice"];
    for (layer, count, users, code, wait, message) in [
        (banned(), 1, &["mallory"][..], 7, Some(hour), abnormal),
        (banned().on_ban(OnBan::Reject(TOO_MANY)), 1, &["mallory"], 8, Some(hour), abnormal),
        (alone(policy()), 2, alice, 8, Some(minute - PAUSE), FULL),
        (alone(monthly), 2, alice, 8, Some(month - PAUSE), &FULL.replace("60s", "720h")),
        (costly, 1, alice, 8, None, impossible),
        (alone(policy()), 1, &[], 16, None, NO_KEY),
        (missing(403), 1, &[], 7, None, NO_KEY),
        (missing(404), 1, &[], 5, None, NO_KEY),
        (missing(418), 1, &[], 2, None, NO_KEY),
        (missing(501), 1, &[], 12, None, NO_KEY),
        (alone(policy()), 1, &["a", "b"], 3, None, ambiguous),
        (own, 1, &[], 13, None, "100 %25 caf%C3%A9"),
        (by_user(policy(), broken), 1, alice, 14, Some(Duration::from_secs(1)), reduced),
    ] {
        let answer = nth(layer, count, users).await;
        check(&answer, code, wait, message);
        let shown = answer.header("ratelimit");
        let of_both = shown.map(|it| it.starts_with(r#""user:3/1s";r=2, "user:1/"#));
        assert_eq!(of_both, (count == 2).then_some(true), "{shown:?}");
    }
}

/// How long requests in flight take, nobody knows. After a ban the place may still be taken.
#[tokio::test(start_paused = true)]
async fn client_behind_requests_in_flight_chooses_its_pause_itself() {
    let (store, jobs) = (MemoryStore::new(), Policy::from(Quota::per_minute(1)).in_flight());
    assert!(admit(&Limiter::new(jobs.clone(), store.clone()), "alice").await);
    let layer = by_user(jobs, store.clone()).rule(policy(), key::header("x-user-id"));
    for code in ["8", "7"] {
        let denied = nth(layer.clone(), 1, &["alice"]).await;
        assert_eq!(denied.header("grpc-status"), Some(code));
        assert_eq!(denied.header("grpc-retry-pushback-ms"), None, "-1 would forbid a retry");
        let bans = Bans::new(policy(), store.clone());
        bans.impose("alice", Duration::from_secs(2), "").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_only_response_ends_at_once() {
    let service = alone(policy()).layer(service_fn(ok));
    let response = service.oneshot(grpc_request(GRPC, &[])).await.unwrap();
    assert!(response.body().is_end_stream(), "END_STREAM is on the headers");
    assert!(response.into_body().collect().await.unwrap().trailers().is_none());
}

#[tokio::test(start_paused = true)]
async fn content_type_decides_what_is_grpc() {
    let service = alone(policy()).layer(service_fn(ok));
    for (sent, received) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("Application/gRPC+json", "application/grpc"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
    ] {
        let answer = send(&service, grpc_request(sent, &[])).await;
        assert_eq!(answer.status, OK);
        assert_eq!(answer.header("content-type"), Some(received));
        assert_eq!(answer.header("grpc-status"), Some("16"), "{sent}");
    }
    let json = send(&service, grpc_request("application/json", &[])).await;
    assert_eq!((json.status, json.header("grpc-status")), (StatusCode::UNAUTHORIZED, None));
    let get = send(&service, request(&[("content-type", GRPC)])).await;
    assert_eq!(get.status, StatusCode::UNAUTHORIZED, "gRPC is POST");
}

#[tokio::test(start_paused = true)]
async fn grpc_gets_no_response_it_cannot_read() {
    let html = alone(policy()).on_rejection(|_, rejection| {
        Response::builder().status(rejection.status()).body("<h1>full</h1>".to_owned()).unwrap()
    });
    check(&nth(html, 1, &[]).await, 16, None, NO_KEY);
    let own = alone(policy()).on_rejection(|_, rejection| {
        let mut response = rejection.to_grpc_response();
        response.headers_mut().insert("grpc-message", "own".parse().unwrap());
        response
    });
    check(&nth(own, 1, &[]).await, 16, None, "own");
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
    let layer = alone(Quota::per_hour(2)).cancel_if(ok);
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
