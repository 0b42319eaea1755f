//! Mistakes that would limit nothing, or every request, are reported: by a panic at the caller, by one
//! warning, and by a metric.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::process::{Command, Stdio};
use std::sync::Once;

use crate::*;

fn policy(name: &str) -> Policy {
    Policy::new(name).quota(Quota::per_hour(10_000))
}

fn by(name: &str, key: impl KeyExtractor) -> SlidingWindowLayer {
    SlidingWindowLayer::new(policy(name), key, MemoryStore::new())
}

/// Returns the warning that is the only one.
#[track_caller]
fn only(warnings: &Warnings) -> String {
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

fn missing(recorded: &RecordedMetrics, policy: &str, reason: &str) -> u64 {
    let labels = format!("{{policy={policy},reason={reason}}}");
    recorded.count(&format!("sliding_window_missing_keys_total{labels}"))
}

#[tokio::test(start_paused = true)]
async fn key_not_provided_is_500_and_warns_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let warnings = Warnings::listen();
    let layer = || by("ip", key::peer_ip());
    let service = layer().layer(service_fn(ok));
    for _ in 0..3 {
        let answer = send(&service, request(&[])).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.document()["detail"].to_string();
        assert!(detail.contains("into_make_service_with_connect_info"), "{detail}");
        assert_eq!(answer.retry_after(), None);
    }
    assert_eq!(missing(&recorded, "ip", "not_provided"), 3);
    let line = only(&warnings);
    assert!(line.contains("policy=\"ip\""), "{line}");
    assert!(line.contains("into_make_service_with_connect_info"), "the fix: {line}");

    let skipping = layer().on_missing_key(MissingKey::SkipRule).layer(service_fn(ok));
    assert_eq!(send(&skipping, request(&[])).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let shadow = layer().shadow(true).layer(service_fn(ok));
    assert_eq!(send(&shadow, request(&[])).await.status, OK);
    assert_eq!(missing(&recorded, "ip", "not_provided"), 5, "in shadow mode too");

    let own = |_: &Parts| Err(KeyError::NotProvided { fix: "see \"C:\\login\"\n" });
    let answer = send(&by("own", own).layer(service_fn(ok)), request(&[])).await;
    assert_eq!(answer.document()["detail"], "see \"C:\\login\"");
}

#[test]
fn ban_that_ends_before_the_log_has_room_is_warned_of() {
    let warnings = Warnings::listen();
    let user = |penalty: &str| {
        let quota = Quota::new(5, Duration::from_secs(600));
        PolicyHandle::new(Policy::new("user").quota(quota).penalty(penalty.parse().unwrap()))
    };
    user("3/1h:10m,1h");
    user("3/1h:30m");
    assert_eq!(warnings.lines(), Vec::<String>::new());
    let short = user("3/1h:1m,1h");
    assert!(only(&warnings).contains("policy=\"user\" ban=60s quota=5/600s"));
    short.set("5/1m".parse::<Policy>().unwrap()).unwrap();
    assert_eq!(warnings.lines().len(), 1, "a shorter window is full for no longer");
    short.set(Quota::per_hour(5)).unwrap();
    assert_eq!(warnings.lines().len(), 3, "it keeps its penalty, which can't bring a ban any more");
}

#[test]
fn ban_that_never_comes_is_warned_of() {
    let warnings = Warnings::listen();
    let user = |quotas: &str, penalty: &str| {
        let policy = quotas.parse::<Policy>().unwrap().named("user");
        PolicyHandle::new(policy.penalty(penalty.parse().unwrap()))
    };
    user("1/5m", "3/601s:10m");
    user("2/1s,5/60s", "10/1m:10m");
    let possible = user("5/60s", "1/1m:10m");
    assert_eq!(warnings.lines(), Vec::<String>::new());
    user("5/60s", "10/1m:10m");
    assert!(only(&warnings).contains("policy=\"user\" strikes=10/60s quotas=5/60s"));
    user("1/5m", "3/10m:10m");
    assert_eq!(warnings.lines().len(), 2, "the third is ten minutes after the first");
    possible.set("5/60s".parse::<Policy>().unwrap().penalty("2/1m:10m".parse().unwrap())).unwrap();
    assert_eq!(warnings.lines().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn each_reason_has_a_label() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let service = by("a", key::header("x-a"))
        .rule(policy("b"), key::optional(key::header("x-b")))
        .layer(service_fn(ok));
    assert_eq!(send(&service, request(&[])).await.status, StatusCode::UNAUTHORIZED);
    let twice = request(&[("x-a", "1"), ("x-a", "2")]);
    assert_eq!(send(&service, twice).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(send(&service, request(&[("x-a", "1")])).await.status, OK);
    let counts = ["missing", "invalid", "not_provided"].map(|it| missing(&recorded, "a", it));
    assert_eq!(counts, [1, 1, 0]);
    assert_eq!(missing(&recorded, "b", "not_applicable"), 1);
}

#[tokio::test(start_paused = true)]
async fn rule_that_never_finds_its_key_warns_once() {
    let misspelt = || by("user", key::header("x-usr-id"));
    let skipping = misspelt().on_missing_key(MissingKey::SkipRule);
    let without_login = by("user", key::extension::<String>());
    // Clients may leave this header out.
    let optional = by("user", key::optional(key::header("x-usr-id")));
    // The key is in each request, and the value in none.
    let (user, value) = (key::header("x-user-id"), key::header("x-devcie"));
    let devices = policy("devices").distinct();
    let without_value = by("user", user.clone()).rule_distinct(devices, user, value);
    for (layer, found_first, status, warned) in [
        (misspelt(), false, 401, Some("user")),
        (misspelt(), true, 401, None),
        (skipping, false, 200, Some("user")),
        (without_login.clone(), false, 401, Some("user")),
        (without_login, true, 401, None),
        (optional, false, 200, None),
        (without_value, false, 401, Some("devices")),
    ] {
        let warnings = Warnings::listen();
        let service = layer.layer(service_fn(ok));
        if found_first {
            let mut request = request(&[("x-usr-id", "alice")]);
            request.extensions_mut().insert(String::from("alice"));
            send(&service, request).await;
        }
        for requests in 1..=300 {
            assert_eq!(self::status(&service, "alice").await, status);
            let expected = usize::from(warned.is_some() && requests >= 100);
            assert_eq!(warnings.lines().len(), expected, "after {requests}: {warned:?}");
        }
        let names = |name| warnings.lines()[0].contains(&format!("policy=\"{name}\""));
        assert!(warned.is_none_or(names), "{warned:?}");
    }
}

/// It is checked once a second while it waits.
#[tokio::test(start_paused = true)]
async fn waiting_request_lacks_its_key_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, wait) = (Warnings::listen(), Duration::from_secs(200));
    let layer = alone(Quota::new(1, wait)).rule(policy("device"), key::header("x-device"));
    let layer = layer.on_missing_key(MissingKey::SkipRule).max_wait(wait);
    let service = layer.layer(service_fn(ok));
    for _ in 0..2 {
        assert_eq!(status(&service, "alice").await, OK);
    }
    assert_eq!(missing(&recorded, "device", "missing"), 2);
    assert_eq!(warnings.lines(), [""; 0], "of two requests");
}

#[tokio::test(start_paused = true)]
async fn impossible_cost_warns_once_and_is_no_store_failure() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let warnings = Warnings::listen();
    let five = || Policy::from(Quota::per_minute(5));
    for (policy, kind, status) in [
        (five().budget(), "cost_above_limit", TOO_MANY),
        (five(), "no_budget", StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let (cost, before) = (6, warnings.lines().len());
        let limiter = Limiter::new(policy.clone(), MemoryStore::new());
        let layer = alone(policy).cost(move |_| cost);
        for service in [layer.clone().layer(service_fn(ok)), layer.layer(service_fn(ok))] {
            let error = limiter.clone().check_cost("alice", cost).await.unwrap_err();
            assert_eq!((error.kind(), error.retry_after()), (kind, None));
            let answer = send(&service, from_user("alice")).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.retry_after(), None, "no wait would help");
            assert_eq!(answer.document()["detail"], error.to_string());
        }
        let count = |name| recorded.count(&format!("sliding_window_{name}_total{{kind={kind}}}"));
        assert_eq!((count("store_errors"), count("impossible_requests")), (0, 4));
        assert_eq!(warnings.lines().len() - before, 2, "once for the layer and for the limiter");
    }
    assert!(warnings.lines()[0].contains("cost 6 can never pass a limit of 5"));
}

fn from_peer(peer: &str, headers: &[(&str, &str)]) -> Request<String> {
    let mut request = request(headers);
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 443));
    request
}

#[tokio::test(start_paused = true)]
async fn proxy_that_is_not_trusted_warns_once() {
    let trusted = |proxies: &str| key::client_ip(proxies.parse().unwrap());
    let health_check = from_peer("10.0.0.9", &[]);
    let by_another = from_peer("127.0.0.1", &[("x-forwarded-for", "203.0.113.8")]);
    for (by, header, first, warned) in [
        (trusted("127.0.0.1"), "x-forwarded-for", &health_check, true),
        (trusted("127.0.0.1"), "forwarded", &health_check, true),
        (key::peer_ip(), "x-forwarded-for", &health_check, true),
        (trusted("127.0.0.1, ::1"), "x-forwarded-for", &health_check, false),
        (trusted("127.0.0.1"), "x-forwarded-for", &by_another, false),
    ] {
        let warnings = Warnings::listen();
        let service = self::by("ip", by).layer(service_fn(ok));
        assert_eq!(send(&service, first.clone()).await.status, OK);
        for requests in 1..=300 {
            let forwarded = from_peer("::1", &[(header, "203.0.113.7")]);
            assert_eq!(send(&service, forwarded).await.status, OK);
            assert!(requests >= 100 || warnings.lines().is_empty(), "after {requests}");
        }
        let lines = warnings.lines();
        assert_eq!(lines.len(), usize::from(warned), "{header} after {first:?}: {lines:?}");
        let says = |line: &String| line.contains("key::client_ip") && !line.contains("::1");
        assert!(lines.iter().all(says), "{lines:?}");
    }
}

thread_local! {
    /// Where this thread panicked last, and what it said.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Checks that `make` panics with a message that holds `part`, and names a line of this file.
#[track_caller]
fn panics_here<T>(part: &str, make: impl FnOnce() -> T) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICKED.set(info.to_string());
            before(info);
        }));
    });
    assert!(panic::catch_unwind(AssertUnwindSafe(make)).is_err(), "{part}: no panic");
    let message = PANICKED.take();
    assert!(message.starts_with(concat!("panicked at ", file!(), ":")), "{message}");
    assert!(message.contains(part), "{message}");
}

#[test]
fn a_constructor_panics_at_its_caller() {
    const ONE: Quota = Quota::per_minute(1);
    let empty = || Policy::new("empty");
    let by = || key::header("x-user-id");
    panics_here("limit", || Quota::new(0, Duration::from_secs(1)));
    panics_here("microseconds", || Quota::new(1, Duration::from_nanos(1_500)));
    panics_here("limit", || Quota::per_second(0));
    panics_here("limit", || Quota::per_minute(0));
    panics_here("limit", || Quota::per_hour(0));
    panics_here("limit", || Quota::per_day(0));
    panics_here("a b", || Policy::new("a b"));
    panics_here("a b", || Policy::from(ONE).named("a b"));
    panics_here("empty", || PolicyHandle::new(empty()));
    panics_here("empty", || PolicyHandle::from(empty()));
    panics_here("no policy", || Policies::new([]));
    panics_here("/0 is not the length of an IPv6", || key::peer_ip().ipv6_prefix(0));
    panics_here("an IPv6 network: it is 1 to 128", || key::peer_ip().ipv6_prefix(129));
    panics_here("/0 is not the length of an IPv4", || key::peer_ip().ipv4_prefix(0));
    panics_here("/33 is not the length of an IPv4", || key::peer_ip().ipv4_prefix(33));
    panics_here("`instances`", || FailurePolicy::local(0));
    panics_here("`name`", || key::header("a b"));
    panics_here("empty", || Limiter::new(empty(), MemoryStore::new()));
    panics_here("empty", || Bans::new(empty(), MemoryStore::new()));
    panics_here("Penalty::manual()", || Bans::new(ONE, MemoryStore::new()));
    panics_here("empty", || SlidingWindowLayer::new(empty(), by(), MemoryStore::new()));
    let layer = SlidingWindowLayer::new(ONE, by(), MemoryStore::new());
    panics_here("empty", || layer.clone().rule(empty(), by()));
    panics_here("`Policy::distinct`", || layer.rule_distinct(ONE, by(), by()));
    let accounts = || Policy::from(ONE).distinct();
    panics_here("`rule_distinct`", || {
        SlidingWindowLayer::new(accounts(), by(), MemoryStore::new())
    });
    panics_here("`prefix` has a brace", || RedisStore::builder().prefix("a{b}"));
    let no_time = || RedisStore::builder().response_timeout(Duration::ZERO);
    panics_here("`response_timeout` is zero", no_time);
}

#[tokio::test]
async fn redis_never_up_warns_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let warnings = Warnings::listen();
    let mut redis = Redis::start().await;
    redis.kill();
    let _store = RedisStore::connect_lazy(redis.url()).unwrap();
    eventually("it is warned of", async || !warnings.lines().is_empty()).await;
    assert!(recorded.names().contains(&"sliding_window_store_available{}".to_owned()));
    assert_eq!(recorded.available(), 0.0);
    // A few attempts more.
    sleep(Duration::from_millis(300)).await;
    assert!(only(&warnings).contains("the store does not answer"));
    // Once it runs, it does not take the login. That is another reason.
    let mut command = Command::new("redis-server");
    command.args(["--port", &redis.port().to_string(), "--save", "", "--requirepass", "secret"]);
    let _process = Process::start(command.stdout(Stdio::null()));
    eventually("it is warned of", async || warnings.lines().len() > 1).await;
    assert!(warnings.lines()[1].contains("NOAUTH"), "{:?}", warnings.lines());
}
