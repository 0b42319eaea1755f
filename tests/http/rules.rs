//! Several rules in front of one service, and requests that have no key for one of them.

use std::net::IpAddr;
use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::json;
use tokio::time::advance;
use tower::service_fn;
use tower_layer::Layer;
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    MemoryStore, MissingKey, Policy, PolicyHandle, Quota, SlidingWindowLayer, key,
};

use test_support::requests::{by_user, from_user, ok, request, send};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn user(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_minute(limit))
}

fn ip(limit: u32) -> Policy {
    Policy::new("ip").quota(Quota::per_hour(limit))
}

fn user_and_ip(user: Policy, ip: Policy, store: &(impl Store + Clone)) -> SlidingWindowLayer {
    by_user(user, store.clone()).rule(ip, key::header("x-ip"))
}

fn from(user: &str, ip: &str) -> Request<String> {
    request(&[("x-user-id", user), ("x-ip", ip)])
}

#[tokio::test(start_paused = true)]
async fn denial_names_every_policy_and_longest_wait() {
    let roomy = Policy::new("site").quota(Quota::per_second(1000));
    let service = user_and_ip(user(1), ip(1), &MemoryStore::new())
        .rule(roomy, key::constant("all"))
        .layer(service_fn(ok));
    assert_eq!(send(&service, from("alice", "1")).await.status, OK);
    advance(Duration::from_secs(10)).await;

    let answer = send(&service, from("alice", "1")).await;
    assert_eq!(answer.problem()["violated-policies"], json!(["user", "ip"]));
    assert_eq!(answer.retry_after(), Some(3590));
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""user";q=1;w=60, "ip";q=1;w=3600, "site";q=1000;w=1"#)
    );
    assert_eq!(
        answer.header("ratelimit"),
        Some(r#""user";r=0;t=50, "ip";r=0;t=3590, "site";r=1000"#)
    );
    advance(Duration::from_secs(3590)).await;
    assert_eq!(send(&service, from("alice", "1")).await.status, OK);
}

#[tokio::test(start_paused = true)]
async fn missing_key_is_401_and_uncounted() {
    let store = MemoryStore::new();
    let service = user_and_ip(user(1), ip(1), &store).layer(service_fn(ok));
    for headers in [&[][..], &[("x-ip", "1")], &[("x-user-id", "alice")], &[("x-user-id", "")]] {
        let answer = send(&service, request(headers)).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{headers:?}");
        assert_eq!(answer.problem()["status"], 401);
        assert_eq!(answer.problem()["detail"], "The request has no key for a rate limit");
        assert_eq!(answer.header("retry-after"), None);
    }
    assert!(store.is_empty());

    let service = user_and_ip(user(1), ip(1), &store)
        .on_missing_key(MissingKey::Reject(StatusCode::FORBIDDEN))
        .layer(service_fn(ok));
    let answer = send(&service, request(&[])).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.problem()["status"], 403);
}

#[tokio::test(start_paused = true)]
async fn a_missing_key_can_skip_its_rule_and_no_other() {
    let service = user_and_ip(user(1), ip(2), &MemoryStore::new())
        .on_missing_key(MissingKey::SkipRule)
        .layer(service_fn(ok));
    let anonymous = || request(&[("x-ip", "1")]);
    assert_eq!(send(&service, anonymous()).await.status, OK);
    assert_eq!(send(&service, anonymous()).await.status, OK);
    let answer = send(&service, anonymous()).await;
    assert_eq!(answer.problem()["violated-policies"], json!(["ip"]));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""ip";q=2;w=3600"#));
    for _ in 0..5 {
        assert_eq!(send(&service, request(&[])).await.status, OK, "no rule applies");
    }
}

#[tokio::test(start_paused = true)]
async fn ambiguous_key_is_always_400() {
    let store = MemoryStore::new();
    let rule = || by_user(user(1), store.clone());
    let optional = key::optional(key::header("x-user-id"));
    for layer in [
        rule(),
        rule().on_missing_key(MissingKey::SkipRule),
        rule().on_missing_key(MissingKey::Reject(StatusCode::FORBIDDEN)),
        SlidingWindowLayer::new(user(1), optional, store.clone()),
    ] {
        let service = layer.layer(service_fn(ok));
        let answer = send(&service, request(&[("x-user-id", "a"), ("x-user-id", "b")])).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.problem()["status"], 400);
        assert!(answer.problem()["detail"].to_string().contains("ambiguous or malformed"));
    }
    assert!(store.is_empty());
}

/// A user may choose any name, also one that reads like an address.
#[tokio::test(start_paused = true)]
async fn unnamed_rules_keep_logs_of_their_own() {
    let from = |user: &str, ip: [u8; 4]| {
        let mut request = from_user(user);
        request.extensions_mut().insert(IpAddr::from(ip));
        request
    };
    for user in ["ABCD", "65.66.67.68", "6:rule-265.66.67.68", "6:rule-165.66.67.68"] {
        let policy = PolicyHandle::new(Quota::per_minute(1));
        let service = by_user(&policy, MemoryStore::new())
            .rule(&policy, key::peer_ip())
            .layer(service_fn(ok));
        assert_eq!(send(&service, from(user, [10, 0, 0, 1])).await.status, OK, "{user}");
        let other = send(&service, from("alice", [65, 66, 67, 68])).await;
        assert_eq!(other.status, OK, "{user} is no address");
        assert_eq!(send(&service, from(user, [10, 0, 0, 2])).await.status, TOO_MANY);
        assert_eq!(send(&service, from("bob", [65, 66, 67, 68])).await.status, TOO_MANY);
    }
}
