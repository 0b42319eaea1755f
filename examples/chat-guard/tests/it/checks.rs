//! Messages that wait for their check, and who reads what meanwhile.

use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually};
use tokio::time::timeout;

use super::{ROOM, checked, post, say, seen, start, stop};

const HELLO: &str = r#"{"text": "hello"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_before_the_check() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let server = start(&["--redis", &proxy.url(), "--response-timeout", "10m"]);
    proxy.set(Fault::Stall);
    for text in ["1", "2", "3"] {
        for user in ["alice", "bob"] {
            let body = format!(r#"{{"text": "{text}"}}"#);
            let answer = timeout(Duration::from_secs(30), post(&server, ROOM, user, &body)).await;
            assert_eq!(answer.expect("it does not wait for Redis").status, 202);
        }
    }
    assert_eq!(seen(&server, ROOM, "alice").await, ["alice: 1", "alice: 2", "alice: 3"]);
    assert!(seen(&server, ROOM, "carol").await.is_empty());
    proxy.set(Fault::None);
    checked(&server).await;
    let all = ["alice: 1", "bob: 1", "alice: 2", "bob: 2", "alice: 3", "bob: 3"];
    assert_eq!(seen(&server, ROOM, "carol").await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_checked_before_the_end() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let server = start(&["--redis", &proxy.url(), "--rule", "events 5/1h mute 1h"]);
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    for _ in 0..5 {
        assert_eq!(post(&server, ROOM, "mallory", HELLO).await.status, 202);
    }
    assert!(stop(server).contains("audit: muted"));
    assert_eq!(redis.entries("chat:{=mallory}:speech:messages").await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_checked_at_the_end_is_told() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let server = start(&["--redis", &proxy.url(), "--response-timeout", "10m"]);
    proxy.set(Fault::Stall);
    for _ in 0..3 {
        post(&server, ROOM, "alice", HELLO).await;
    }
    let logs = stop(server);
    assert!(logs.contains("the end comes before these are checked messages=3"), "{logs}");
}

#[tokio::test]
async fn posting_has_a_quota_and_reading_has_none() {
    let server = start(&["--rule", "events 2/1h mute 1h"]);
    for user in ["alice", "bob"] {
        for _ in 0..30 {
            assert_eq!(post(&server, ROOM, user, HELLO).await.status, 202);
        }
        let denied = post(&server, "/private/bob", user, HELLO).await;
        assert!(denied.problem(429).ends_with("#quota-exceeded"), "{denied:?}");
        assert!(denied.retry_after() <= 10, "{denied:?}");
        seen(&server, ROOM, user).await;
    }
}

#[tokio::test]
async fn only_the_two_of_a_pair_read_what_is_private() {
    let server = start(&[]);
    say(&server, "/private/bob", "alice", "hello").await;
    say(&server, "/private/alice", "bob", "hi").await;
    let both = ["alice: hello", "bob: hi"];
    assert_eq!(seen(&server, "/private/bob", "alice").await, both);
    assert_eq!(seen(&server, "/private/alice", "bob").await, both);
    assert_eq!(seen(&server, "/private/bob", "bob").await, ["alice: hello"]);
    for path in ["/private/alice", "/private/bob", "/private/eve"] {
        assert!(seen(&server, path, "eve").await.is_empty(), "{path}");
        server.get(path).await.problem(401);
        server.send(server.request("GET", path).header("x-user-id", "")).await.problem(401);
    }
}

#[tokio::test]
async fn a_flood_leaves_the_message_of_another_in_the_box() {
    let server = start(&["--rule", "events 100/1h mute 1h"]);
    say(&server, "/private/bob", "alice", "hello").await;
    for number in 0..120 {
        post(&server, "/private/bob", &format!("bot {}", number % 6), HELLO).await;
    }
    let are_there = async || seen(&server, "/private/bob", "bob").await.len() == 100;
    eventually("the flood is delivered", are_there).await;
    assert_eq!(seen(&server, "/private/bob", "bob").await[0], "alice: hello");
    assert_eq!(seen(&server, "/private/alice", "bob").await, ["alice: hello"]);
}
