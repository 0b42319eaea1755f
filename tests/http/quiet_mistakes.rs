//! Mistakes that leave the responses as they are, or deny without a wait, are reported by one warning.

use std::net::SocketAddr;

use http::{Request, StatusCode};
use test_support::requests::{by_user, from_user, ok, request, send};
use test_support::warnings::Warnings;
use tower::{Layer, service_fn};
use tower_sliding_window::key::{self, IpExtractor};
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, SlidingWindowLayer};

fn policy(name: &str) -> Policy {
    Policy::new(name).quota(Quota::per_hour(10_000))
}

fn from_peer(peer: &str, headers: &[(&'static str, &str)]) -> Request<String> {
    let mut request = request(headers);
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 443));
    request
}

/// Returns the warnings after 300 requests that a proxy has forwarded, after `first` requests.
async fn warnings_behind_a_proxy(
    by: IpExtractor,
    header: &'static str,
    first: &[Request<String>],
) -> Vec<String> {
    let (warnings, _subscriber) = Warnings::listen();
    let service =
        SlidingWindowLayer::new(policy("ip"), by, MemoryStore::new()).layer(service_fn(ok));
    for request in first {
        assert_eq!(send(&service, request.clone()).await.status, StatusCode::OK);
    }
    for requests in 1..=300 {
        let request = from_peer("::1", &[(header, "203.0.113.7")]);
        assert_eq!(send(&service, request).await.status, StatusCode::OK);
        assert!(requests >= 100 || warnings.lines().is_empty(), "after {requests}");
    }
    warnings.lines()
}

#[tokio::test(start_paused = true)]
async fn proxy_that_is_not_trusted_warns_once() {
    let trusted = |proxies: &str| key::client_ip(proxies.parse().unwrap());
    let health_check = || from_peer("10.0.0.9", &[]);
    for (by, header) in [
        (trusted("127.0.0.1"), "x-forwarded-for"),
        (trusted("127.0.0.1"), "forwarded"),
        (key::peer_ip(), "x-forwarded-for"),
    ] {
        let lines = warnings_behind_a_proxy(by, header, &[health_check()]).await;
        assert_eq!(lines.len(), 1, "{header}: {lines:?}");
        assert!(lines[0].contains("key::client_ip") && !lines[0].contains("::1"), "{lines:?}");
    }
    let header = "x-forwarded-for";
    let lines = warnings_behind_a_proxy(trusted("127.0.0.1, ::1"), header, &[]).await;
    assert_eq!(lines, Vec::<String>::new(), "a trusted proxy");
    let proxied = from_peer("127.0.0.1", &[(header, "203.0.113.8")]);
    let lines = warnings_behind_a_proxy(trusted("127.0.0.1"), header, &[proxied]).await;
    assert_eq!(lines, Vec::<String>::new(), "another proxy is trusted");
}

#[tokio::test(start_paused = true)]
async fn optional_extension_never_found_warns() {
    let layer = |by| SlidingWindowLayer::new(policy("user"), by, MemoryStore::new());
    for found_first in [false, true] {
        let (warnings, _subscriber) = Warnings::listen();
        let by = key::optional(key::extension::<String>());
        let service = layer(by).layer(service_fn(ok));
        if found_first {
            let mut request = request(&[]);
            request.extensions_mut().insert(String::from("alice"));
            send(&service, request).await;
        }
        for requests in 1..=300 {
            assert_eq!(send(&service, request(&[])).await.status, StatusCode::OK);
            let expected = usize::from(requests >= 100 && !found_first);
            assert_eq!(warnings.lines().len(), expected, "after {requests}");
        }
        assert!(found_first || warnings.lines()[0].contains("policy=\"user\""));
    }
}

#[tokio::test(start_paused = true)]
async fn optional_header_never_sent_is_silent() {
    let (warnings, _subscriber) = Warnings::listen();
    let by = key::optional(key::header("x-user-id"));
    let service =
        SlidingWindowLayer::new(policy("user"), by, MemoryStore::new()).layer(service_fn(ok));
    for _ in 0..300 {
        assert_eq!(send(&service, request(&[])).await.status, StatusCode::OK);
    }
    assert_eq!(warnings.lines(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn cost_above_the_limit_warns_once() {
    let (warnings, _subscriber) = Warnings::listen();
    let layer = by_user(Quota::per_minute(5), MemoryStore::new()).cost(|_| 6);
    for service in [layer.clone().layer(service_fn(ok)), layer.layer(service_fn(ok))] {
        for _ in 0..3 {
            let answer = send(&service, from_user("a")).await;
            assert_eq!(
                (answer.status, answer.retry_after()),
                (StatusCode::TOO_MANY_REQUESTS, None)
            );
        }
    }
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "one for the layer: {lines:?}");
    assert!(lines[0].contains("cost 6 can never pass a limit of 5"), "{lines:?}");

    let limiter = Limiter::new(Quota::per_minute(5), MemoryStore::new());
    for _ in 0..3 {
        limiter.clone().check_cost("alice", 6).await.unwrap_err();
    }
    assert_eq!(warnings.lines().len(), 2, "one for the limiter: {lines:?}");
}
