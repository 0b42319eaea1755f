//! Mistakes that would limit nothing, or every request, are reported: by a panic at the caller, by one
//! warning, and by a metric.

use std::cell::RefCell;

use std::net::{IpAddr, SocketAddr};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use http::StatusCode;
use test_support::recorder::RecordedMetrics;
use test_support::requests::{by_user, from_user, ok, request, send, status};
use test_support::warnings::Warnings;
use tower::{Layer, ServiceBuilder, service_fn};
use tower_sliding_window::{
    Bans, FailurePolicy, Limiter, MemoryStore, MissingKey, Policies, Policy, PolicyHandle, Quota,
    RedisStore, SlidingWindowLayer, StoreError, key,
};

fn policy(name: &str) -> Policy {
    Policy::new(name).quota(Quota::per_minute(1_000))
}

fn missing(recorded: &RecordedMetrics, policy: &str, reason: &str) -> u64 {
    let labels = format!("{{policy={policy},reason={reason}}}");
    recorded.count(&format!("sliding_window_missing_keys_total{labels}"))
}

#[tokio::test(start_paused = true)]
async fn key_not_provided_is_500_and_warns_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, _subscriber) = Warnings::listen();
    let layer = || SlidingWindowLayer::new(policy("ip"), key::peer_ip(), MemoryStore::new());
    let service = layer().layer(service_fn(ok));
    for _ in 0..3 {
        let answer = send(&service, request(&[])).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.problem()["status"], 500);
        assert_eq!((answer.retry_after(), answer.body.contains("serve")), (None, false));
    }
    assert_eq!(missing(&recorded, "ip", "not_provided"), 3);
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("policy=\"ip\""), "{lines:?}");
    assert!(lines[0].contains("into_make_service_with_connect_info"), "the fix: {lines:?}");

    let skipping = layer().on_missing_key(MissingKey::SkipRule).layer(service_fn(ok));
    assert_eq!(send(&skipping, request(&[])).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let shadow = layer().shadow(true).layer(service_fn(ok));
    assert_eq!(send(&shadow, request(&[])).await.status, StatusCode::OK);
    assert_eq!(missing(&recorded, "ip", "not_provided"), 5, "in shadow mode too");
}

#[tokio::test(start_paused = true)]
async fn each_reason_has_a_label() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let service = SlidingWindowLayer::new(policy("a"), key::header("x-a"), MemoryStore::new())
        .rule(policy("b"), key::optional(key::header("x-b")))
        .layer(service_fn(ok));
    assert_eq!(send(&service, request(&[])).await.status, StatusCode::UNAUTHORIZED);
    let twice = request(&[("x-a", "1"), ("x-a", "2")]);
    assert_eq!(send(&service, twice).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(send(&service, request(&[("x-a", "1")])).await.status, StatusCode::OK);
    let counts = ["missing", "invalid", "not_provided"].map(|it| missing(&recorded, "a", it));
    assert_eq!(counts, [1, 1, 0]);
    assert_eq!(missing(&recorded, "b", "not_applicable"), 1);
}

#[tokio::test(start_paused = true)]
async fn rule_that_never_finds_its_key_warns() {
    for (skips, found_first) in [(false, false), (true, false), (false, true)] {
        let (warnings, _subscriber) = Warnings::listen();
        let mut layer =
            SlidingWindowLayer::new(policy("user"), key::header("x-usr-id"), MemoryStore::new());
        if skips {
            layer = layer.on_missing_key(MissingKey::SkipRule);
        }
        let service = layer.layer(service_fn(ok));
        if found_first {
            send(&service, request(&[("x-usr-id", "alice")])).await;
        }
        for requests in 1..=300 {
            status(&service, "alice").await;
            let expected = usize::from(requests >= 100 && !found_first);
            assert_eq!(warnings.lines().len(), expected, "after {requests}");
        }
        assert!(found_first || warnings.lines()[0].contains("policy=\"user\""));
    }
}

#[tokio::test(start_paused = true)]
async fn layer_applied_twice_warns() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, _subscriber) = Warnings::listen();
    let store = MemoryStore::new();
    let layer = |name| by_user(policy(name), store.clone());
    let user = layer("user");
    // A layer of another policy between the two hides neither of them.
    let service =
        ServiceBuilder::new().layer(user.clone()).layer(layer("other")).layer(user).service_fn(ok);
    for _ in 0..3 {
        assert_eq!(status(&service, "alice").await, StatusCode::OK);
    }
    assert_eq!(recorded.count("sliding_window_counted_twice_total{policy=user}"), 3);
    assert_eq!(recorded.count("sliding_window_counted_twice_total{policy=other}"), 0);
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("policy=\"user\""), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn layers_of_two_policies_are_no_mistake() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, _subscriber) = Warnings::listen();
    let store = MemoryStore::new();
    let by = |name, key| SlidingWindowLayer::new(policy(name), key::header(key), store.clone());
    let service = ServiceBuilder::new()
        .layer(by("user", "x-user-id"))
        .layer(by("global", "x-user-id"))
        .layer(by("user", "x-other"))
        .service_fn(ok);
    let names = [("x-user-id", "alice"), ("x-other", "bob")];
    assert_eq!(send(&service, request(&names)).await.status, StatusCode::OK);
    assert_eq!(warnings.lines(), Vec::<String>::new());
    for name in ["user", "global"] {
        assert_eq!(
            recorded.count(&format!("sliding_window_counted_twice_total{{policy={name}}}")),
            0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn impossible_request_is_no_store_failure() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let limiter = Limiter::new(Quota::per_minute(5), MemoryStore::new());
    for (cost, kind) in [(6, "cost_above_limit"), (2_000, "cost_too_high")] {
        let error = limiter.check_cost("alice", cost).await.unwrap_err();
        assert_eq!((error.kind(), error.retry_after()), (kind, None));
        let layer = by_user(Quota::per_minute(5), MemoryStore::new());
        let answer = send(&layer.cost(move |_| cost).layer(service_fn(ok)), from_user("a")).await;
        assert_eq!((answer.status, answer.retry_after()), (StatusCode::TOO_MANY_REQUESTS, None));
        let count = |name| recorded.count(&format!("sliding_window_{name}_total{{kind={kind}}}"));
        assert_eq!((count("store_errors"), count("impossible_requests")), (0, 2));
    }
    assert_eq!(StoreError::Unsupported { what: "lists" }.retry_after(), None);
    assert_eq!(StoreError::Timeout.retry_after(), Some(Duration::from_secs(1)));
}

thread_local! {
    /// Where this thread panicked last, and what it said.
    static PANICKED: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Returns the file and the message of the panic that `act` ends in.
fn panic_of(act: impl FnOnce()) -> (String, String) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let file = info.location().map_or("", |it| it.file()).to_owned();
            PANICKED.with_borrow_mut(|panicked| *panicked = Some((file, info.to_string())));
            before(info);
        }));
    });
    panic::catch_unwind(AssertUnwindSafe(act)).expect_err("a panic");
    PANICKED.take().expect("the hook has run")
}

#[test]
fn a_constructor_panics_at_its_caller() {
    type Case = (&'static str, &'static str, Box<dyn FnOnce()>);
    macro_rules! cases {
        ($($part:literal in $made:expr;)*) => {
            vec![$((stringify!($made), $part, Box::new(move || {
                let _ = $made;
            }) as Box<dyn FnOnce()>)),*]
        };
    }
    const ONE: Quota = Quota::per_minute(1);
    const SECOND: Duration = Duration::from_secs(1);
    let empty = || Policy::new("empty");
    let by = || key::header("x-user-id");
    let store = MemoryStore::new;
    let cases: Vec<Case> = cases! {
        "limit" in Quota::new(0, SECOND);
        "limit" in Quota::per_second(0);
        "limit" in Quota::per_minute(0);
        "limit" in Quota::per_hour(0);
        "limit" in Quota::per_day(0);
        "a b" in Policy::new("a b");
        "a b" in Policy::from(ONE).named("a b");
        "empty" in PolicyHandle::new(empty());
        "no policy" in Policies::new([]);
        "/0 is not the length of an IPv6" in key::peer_ip().ipv6_prefix(0);
        "/33 is not the length of an IPv4" in key::peer_ip().ipv4_prefix(33);
        "empty" in PolicyHandle::from(empty());
        "`instances`" in FailurePolicy::local(0);
        "`name`" in key::header("a b");
        "empty" in Limiter::new(empty(), store());
        "empty" in Bans::new(empty(), store());
        "empty" in SlidingWindowLayer::new(empty(), by(), store());
        "empty" in SlidingWindowLayer::new(ONE, by(), store()).rule(empty(), by());
        "`prefix` has a brace" in RedisStore::builder().prefix("a{b}");
    };
    for (name, part, act) in cases {
        let (file, message) = panic_of(act);
        assert_eq!(file, file!(), "{name} panics at {file}");
        assert!(message.contains(part), "{name} says {message:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_made_from_common_types() {
    let store = MemoryStore::new();
    let ip: IpAddr = "2001:db8::7".parse().unwrap();
    let limiter = Limiter::new(policy("ip"), store.clone());
    let service =
        SlidingWindowLayer::new(policy("ip"), key::peer_ip(), store.clone()).layer(service_fn(ok));
    let mut request = request(&[]);
    request.extensions_mut().insert(SocketAddr::from((ip, 443)));
    assert_eq!(send(&service, request).await.status, StatusCode::OK);
    assert_eq!(limiter.peek(ip).await.unwrap().remaining(), 999);
    limiter.reset(SocketAddr::from((ip, 1))).await.unwrap();
    assert_eq!(limiter.peek("2001:db8::/64").await.unwrap().remaining(), 1_000);

    let penalty = policy("ip").penalty("3/10m:1m".parse().unwrap());
    let bans = Bans::new(penalty, store);
    bans.impose(17_u64, Duration::from_secs(60), "by hand").await.unwrap();
    assert!(bans.lift("17").await.unwrap());
}

#[tokio::test]
async fn redis_never_up_warns_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, _subscriber) = Warnings::listen();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _store = RedisStore::connect_lazy(format!("redis://127.0.0.1:{port}")).unwrap();
    while warnings.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(recorded.knows("sliding_window_store_available{}") && recorded.available() == 0.0);
    // A few attempts more.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("the store does not answer"), "{lines:?}");
}
