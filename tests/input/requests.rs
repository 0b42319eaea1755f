//! The layer against hostile requests: each is counted in the right log, or refused with the right
//! status, and then nothing of it is kept.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use http::request::{Builder, Parts};
use http::{HeaderValue, Request};
use tower_sliding_window::{
    Key, KeyExtractor, Limiter, MemoryStore, Policy, Quota, SlidingWindowLayer, key,
};

use test_support::requests::send;

/// Part of every key: no answer may show it.
const MARK: &str = "Lysistrata";
/// Where the tests of addresses have their proxies.
const PROXIES: &str = "10.0.0.0/8, 2001:db8:1::/48, ::ffff:192.168.0.0/112";

const MISSING: Expected = Expected::Status(401);
const INVALID: Expected = Expected::Status(400);
const NOT_PROVIDED: Expected = Expected::Status(500);

/// What becomes of a request.
#[derive(Clone)]
enum Expected {
    /// It is counted for this key.
    CountsFor(Key),
    /// It is answered with this status.
    Status(u16),
}

fn counts_for(key: impl Into<Key>) -> Expected {
    Expected::CountsFor(key.into())
}

fn one_a_minute() -> Policy {
    Policy::new("rule").quota(Quota::per_minute(1))
}

fn to(path: &str) -> Builder {
    Request::builder().uri(path)
}

fn with(lines: &[(&str, &[u8])]) -> Builder {
    lines.iter().fold(to("/of/all"), |request, (name, value)| {
        request.header(*name, HeaderValue::from_bytes(value).expect("a header's bytes"))
    })
}

/// Holds an extractor to a table: each request is sent to a layer of its own.
async fn hold(extractor: impl KeyExtractor, table: Vec<(&str, Builder, Expected)>) {
    let extractor = Arc::new(extractor);
    for (name, request, expected) in table {
        let (store, extractor) = (MemoryStore::new(), extractor.clone());
        let key = move |parts: &Parts| extractor.extract(parts);
        let layer = SlidingWindowLayer::new(one_a_minute(), key, store.clone());
        let app = Router::new().route("/of/{user}", any(|| async { "ok" })).layer(layer);
        let answer = send(&app, request.body(Body::empty()).expect("a request")).await;
        match expected {
            Expected::CountsFor(key) => {
                assert_eq!(answer.status, 200, "{name}");
                let limiter = Limiter::new(one_a_minute(), store.clone());
                let again = limiter.check(key).await.expect("an answer");
                assert!(!again.is_admitted(), "{name} was counted for another key");
                assert_eq!(store.len(), 1, "{name}");
            }
            Expected::Status(status) => {
                assert_eq!(answer.status, status, "{name}");
                assert!(store.is_empty(), "{name} left a window behind");
                let shown = format!("{answer:?}");
                assert!(!shown.contains(MARK), "{name}: {shown}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_cookie_is_handled() {
    let cookie = |value: &[u8]| with(&[("cookie", value)]);
    let long = format!("a=b; sid={}", MARK.repeat(100_000));
    let many = "a=b; ".repeat(200_000) + "sid=x";
    let table = vec![
        ("empty", cookie(b""), MISSING),
        ("no value", cookie(b"sid=Lysistrata=; sid"), counts_for("Lysistrata=")),
        ("an empty value", cookie(b"sid="), MISSING),
        ("no ASCII", cookie(b"a=\xff; sid=Lysistrata"), INVALID),
        ("no UTF-8", cookie(b"sid=Lysistrata%ff"), INVALID),
        ("decoded", cookie(b"sid=%00%7D"), counts_for("\0}")),
        ("1 MB", cookie(long.as_bytes()), counts_for(MARK.repeat(100_000))),
        ("200,000 of them", cookie(many.as_bytes()), counts_for("x")),
    ];
    hold(key::cookie("sid"), table).await;
}

#[tokio::test(start_paused = true)]
async fn every_query_is_handled() {
    let query = |query: &str| to(&format!("/of/all?{query}"));
    let many = "a=b&".repeat(10_000) + "user=x";
    let table = vec![
        ("empty", query(""), MISSING),
        ("a fragment", query("#user=Lysistrata"), MISSING),
        ("NUL", query("user=%00"), counts_for("\0")),
        ("no UTF-8", query("user=Lysistrata%FF%C0%80"), INVALID),
        ("10,000 of them", query(&many), counts_for("x")),
        ("60 kB", query(&format!("user={}", "x".repeat(60_000))), counts_for("x".repeat(60_000))),
    ];
    hold(key::query("user"), table).await;
}

#[tokio::test(start_paused = true)]
async fn every_path_is_handled() {
    let table = vec![
        ("NUL", to("/of/%00"), counts_for("\0")),
        ("newlines", to("/of/%0D%0a"), counts_for("\r\n")),
        ("braces", to("/of/%7Buser%7D"), counts_for("{user}")),
        ("a slash", to("/of/a%2Fb"), counts_for("a/b")),
        ("a letter", to("/of/sh%6Fe"), counts_for("shoe")),
        ("lower-case digits", to("/of/%e9%9e%8b"), counts_for("鞋")),
        ("no UTF-8", to("/of/Lysistrata%FF"), INVALID),
        ("decoded once", to("/of/%2500"), counts_for("%00")),
        ("no code", to("/of/%zz"), counts_for("%zz")),
        ("dots", to("/of/.."), counts_for("..")),
        ("another route", to("/Lysistrata"), MISSING),
        ("one part too many", to("/of/a/Lysistrata"), MISSING),
        ("60 kB", to(&format!("/of/{}", "x".repeat(60_000))), counts_for("x".repeat(60_000))),
    ];
    hold(key::path_param("user"), table).await;
}

#[tokio::test(start_paused = true)]
async fn every_bearer_token_is_handled() {
    let bearer = |value: &[u8]| with(&[("authorization", value)]);
    let long = format!("Bearer {}", MARK.repeat(100_000));
    let table = vec![
        ("none", with(&[]), MISSING),
        ("empty", bearer(b""), MISSING),
        ("the scheme only", bearer(b"Bearer"), MISSING),
        ("another scheme", bearer(b"Basic Lysistrata"), MISSING),
        ("refused by the closure", bearer(b"Bearer forged-Lysistrata"), MISSING),
        ("no ASCII", bearer(b"Bearer Lysistrata\xff"), INVALID),
        ("twice", with(&[("authorization", b"Bearer a"), ("authorization", b"Bearer a")]), INVALID),
        ("1 MB", bearer(long.as_bytes()), counts_for(MARK.repeat(100_000))),
    ];
    let subject = |token: &str| (!token.starts_with("forged")).then(|| Key::from(token));
    hold(key::bearer(subject), table).await;
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A request of this peer, with these lines of `X-Forwarded-For`.
fn via(peer: &str, forwarded: &[&[u8]]) -> Builder {
    let lines: Vec<_> = forwarded.iter().map(|line| ("x-forwarded-for", *line)).collect();
    with(&lines).extension(ConnectInfo(SocketAddr::new(ip(peer), 443)))
}

#[tokio::test(start_paused = true)]
async fn every_forwarded_address_is_handled() {
    let client = || counts_for("7.7.7.7");
    let proxy = || counts_for("10.0.0.1");
    let forged = "6.6.6.6, ".repeat(50_000) + "7.7.7.7, 10.0.0.2";
    let forwarded_too = via("10.0.0.1", &[b"7.7.7.7"]).header("forwarded", "for=6.6.6.6");
    let proxies = "10.0.0.3, ".repeat(50_000) + "10.0.0.2";
    let table = vec![
        ("an honest one", via("10.0.0.1", &[b"7.7.7.7"]), client()),
        ("another header", forwarded_too, client()),
        ("50,000 forged", via("10.0.0.1", &[forged.as_bytes()]), client()),
        ("50,000 proxies", via("10.0.0.1", &[proxies.as_bytes()]), counts_for("10.0.0.3")),
        ("past proxies", via("10.0.0.1", &[b"7.7.7.7, 2001:db8:1::5, 192.168.3.4"]), client()),
        ("by a mapped proxy", via("::ffff:10.0.0.1", &[b"6.6.6.6, 7.7.7.7"]), client()),
        ("past a mapped proxy", via("10.0.0.1", &[b"7.7.7.7, ::ffff:10.0.0.2"]), client()),
        ("past one trusted as mapped", via("192.168.0.1", &[b"7.7.7.7"]), client()),
        ("no proxy", via("7.7.7.7", &[b"6.6.6.6"]), client()),
        ("no proxy, but says so", via("7.7.7.7", &[b"10.0.0.1, 10.0.0.1"]), client()),
        ("all proxies", via("10.0.0.2", &[b"10.0.0.1, 10.0.0.3"]), proxy()),
        ("nothing forwarded", via("10.0.0.1", &[]), proxy()),
        ("an empty line", via("10.0.0.1", &[b""]), INVALID),
        ("an empty entry", via("10.0.0.1", &[b"7.7.7.7,"]), INVALID),
        ("no UTF-8", via("10.0.0.1", &[b"7.7.7.7\xff"]), INVALID),
        ("no peer", with(&[("x-forwarded-for", b"7.7.7.7")]), NOT_PROVIDED),
    ];
    hold(key::client_ip(PROXIES.parse().expect("networks")), table).await;
}
