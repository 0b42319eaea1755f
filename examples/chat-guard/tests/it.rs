//! What the chat promises, as its users and its operator see it.

use std::collections::BTreeSet;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};
use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::proxy::{Fault, Proxy};
use test_support::requests::HttpResponse;
use test_support::server_process::{ADMIN, Server, cannot_start, refuses, webhook};
use test_support::{Redis, eventually};
use tokio::time::timeout;

const CHAT: &str = env!("CARGO_BIN_EXE_chat-guard");
const ROOM: &str = "/rooms/lobby/messages";
const HELLO: &str = r#"{"text": "hello"}"#;

/// Starts a server with an admin listener.
fn start(flags: &[&str]) -> Server {
    Server::start(CHAT, &[&ADMIN[..], flags].concat())
}

/// Holds two servers to a promise: one that keeps everything itself, and one that has a Redis and no more rights there
/// than SECURITY.md gives it.
async fn on_both(flags: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&start(flags)).await;
    let redis = Redis::start().await;
    let url = make_user(&redis, May::DoAll).await;
    let on_redis = ["--redis", &url, "--prefix", "limiter", "--response-timeout", "10s"];
    promise(&start(&[flags, &on_redis].concat())).await;
    nothing_was_refused(&redis).await;
}

async fn admin(server: &Server, method: &str, path: &str, body: &str) -> HttpResponse {
    server.ask(method, &format!("/admin/{path}"), body).await
}

async fn post(server: &Server, path: &str, user: &str, body: &str) -> HttpResponse {
    let request = server.request("POST", path).header("x-user-id", user);
    server.send_body(request, body.to_owned()).await
}

/// Sends a text of a user, and waits until it is checked. The answer is always the same.
async fn say(server: &Server, path: &str, user: &str, text: &str) {
    let answer = post(server, path, user, &json!({ "text": text }).to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let body = answer.json();
    assert_eq!((body.as_object().unwrap().len(), body["id"].as_str().unwrap().len()), (1, 36));
    checked(server).await;
}

async fn checked(server: &Server) {
    let is_checked =
        async || admin(server, "GET", "waiting", "").await.json() == json!({ "messages": 0 });
    eventually("all messages are checked", is_checked).await;
}

/// Returns the messages that a viewer sees.
async fn seen(server: &Server, path: &str, viewer: &str) -> Vec<String> {
    let answer = server.send(server.request("GET", path).header("x-user-id", viewer)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = |post: &Value| format!("{}: {}", post["from"], post["text"]).replace('"', "");
    answer.json().as_array().unwrap().iter().map(text).collect()
}

async fn mute(server: &Server, user: &str) -> Option<Value> {
    let answer = admin(server, "GET", &format!("mutes/{user}"), "").await;
    assert!([200, 404].contains(&answer.status.as_u16()), "{answer:?}");
    (answer.status == 200).then(|| answer.json())
}

#[tokio::test]
async fn a_mute_is_silent() {
    let alike = ["Cheap gold!", "CHEAP GOLD", "c h e a p  gold!!!", "cheap goooold", "cheap gold"];
    on_both(&[], async |server| {
        for text in alike {
            say(server, ROOM, "mallory", text).await;
        }
        say(server, ROOM, "mallory", "what about noodles?").await;
        say(server, "/private/bob", "mallory", "hello").await;
        say(server, ROOM, "bob", "noodles!").await;

        let delivered = ["mallory: Cheap gold!", "mallory: CHEAP GOLD", "bob: noodles!"];
        assert_eq!(seen(server, ROOM, "bob").await, delivered);
        let own = seen(server, ROOM, "mallory").await;
        assert_eq!((own.len(), &*own[5]), (7, "mallory: what about noodles?"), "all are there");
        assert_eq!(seen(server, "/private/bob", "bob").await, Vec::<String>::new());
        assert_eq!(seen(server, "/private/bob", "mallory").await, ["mallory: hello"]);

        // The third message has muted her for six hours, the fifth for twelve.
        let muted = mute(server, "mallory").await.unwrap();
        let reason = muted["reason"].as_str().unwrap();
        assert!(reason.starts_with("similar 5/300s 90% mute 12h: 5 messages"), "{muted}");
        let left = muted["remaining_seconds"].as_u64().unwrap();
        assert!((12 * 3600 - 60..=12 * 3600).contains(&left), "{muted}");
        assert_eq!(mute(server, "bob").await, None);
    })
    .await;
}

#[tokio::test]
async fn an_operator_mutes_lists_and_lifts() {
    on_both(&["--exempt", "user-0", "--rule", "events 2/1h mute 1h"], async |server| {
        for user in 0..30 {
            for text in ["one", "two"] {
                say(server, ROOM, &format!("user-{user}"), text).await;
            }
        }
        assert_eq!(mute(server, "user-0").await, None, "no rule mutes it");
        let muted = admin(server, "PUT", "mutes/user-0", r#"{"for": "1h"}"#).await.json();
        assert_eq!((&muted["reason"], &muted["user"]), (&"a manual mute".into(), &"user-0".into()));
        let shorter = admin(server, "PUT", "mutes/user-0", r#"{"for": "1m"}"#).await.json();
        assert!(shorter["remaining_seconds"].as_u64().unwrap() > 3_000, "{shorter}");
        say(server, ROOM, "user-0", "three").await;
        assert_eq!(seen(server, ROOM, "carol").await.len(), 2 + 29, "two of user-0, one of others");

        let (mut users, mut query) = (BTreeSet::new(), "mutes?limit=7".to_owned());
        loop {
            let page = admin(server, "GET", &query, "").await.json();
            let mutes = page["mutes"].as_array().unwrap().iter();
            users.extend(mutes.map(|mute| mute["user"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            query = format!("mutes?limit=7&cursor={next}");
        }
        assert_eq!(users.len(), 30, "{users:?}");
        for user in ["carol", "user-0", "user-1"] {
            assert_eq!(admin(server, "DELETE", &format!("mutes/{user}"), "").await.status, 204);
            say(server, ROOM, user, "I am back").await;
        }
        let back = ["carol: I am back", "user-0: I am back", "user-1: I am back"];
        assert_eq!(seen(server, ROOM, "dave").await[31..], back);
        let lifted = "audit: a mute was lifted";
        let is_logged = async || server.logs().matches(lifted).count() >= 2;
        eventually("the two that stood are logged as lifted", is_logged).await;
        assert_eq!(server.logs().matches(lifted).count(), 2, "{}", server.logs());

        for body in
            ["", "{}", r#"["1h"]"#, r#"{"for": 5}"#, r#"{"for": "1ms"}"#, r#"{"for": "2y"}"#]
        {
            let problem = admin(server, "PUT", "mutes/alice", body).await.problem(400);
            assert_eq!(problem, "/problems/bad-mute", "{body}");
        }
        for query in ["?limit=0", "?limit=1001", "?cursor=x", "?user=a"] {
            admin(server, "GET", &format!("mutes{query}"), "").await.problem(400);
        }
        for method in ["GET", "PUT", "DELETE"] {
            let path = "/admin/mutes/alice";
            server.send(server.request(method, path)).await.problem(404);
            server.send(server.admin_request(method, path)).await.problem(401);
        }
    })
    .await;
}

#[tokio::test]
async fn a_mute_is_an_alert_in_which_names_are_no_markup() {
    let (url, alerts) = webhook().await;
    let server = start(&["--alert-webhook", &url]);
    let muted = admin(&server, "PUT", "mutes/mal%22%3Clory", r#"{"for": "1h"}"#).await;
    assert_eq!(muted.status, 200);
    eventually("the mute is an alert", async || alerts.lock().unwrap().len() == 1).await;
    let alert = alerts.lock().unwrap()[0].clone();
    assert_eq!((&alert["user"], &alert["alert"]), (&"mal\"<lory".into(), &"mute".into()));
    assert!(alert["text"].as_str().unwrap().contains("&lt;lory"), "{alert}");
}

/// The webhook takes no alert for a while.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_what_a_flood_of_alerts_leaves_out() {
    let (url, alerts) = webhook().await;
    let port = url.split([':', '/']).nth(4).unwrap();
    let proxy = Proxy::to(port.parse().unwrap()).await;
    let server = start(&["--alert-webhook", &url.replace(port, &proxy.port().to_string())]);
    proxy.set(Fault::Stall);
    for user in 0..20 {
        let muted = admin(&server, "PUT", &format!("mutes/user-{user}"), r#"{"for": "1h"}"#).await;
        assert_eq!(muted.status, 200);
    }
    let left_out = || {
        let logs = server.logs();
        let lines = logs.split("alerts are not sent: too many at a time times=").skip(1);
        lines.filter_map(|it| it.lines().next()?.parse::<u32>().ok()).sum::<u32>()
    };
    eventually("the log counts those that got no place", async || left_out() == 4).await;
    proxy.set(Fault::None);
    let logs = server.stop();
    let users: BTreeSet<_> =
        alerts.lock().unwrap().iter().map(|it| it["user"].to_string()).collect();
    assert_eq!(users.len(), 16, "the end waits for those that are kept");
    assert_eq!(logs.matches("audit: muted").count(), 20, "the log has each mute: {logs}");
}

#[tokio::test]
async fn a_chat_without_its_redis_goes_on_and_known_mutes_hold() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    for _ in 0..3 {
        say(&server, ROOM, "mallory", "cheap gold").await;
    }
    for key in redis.keys().await {
        assert!(key.starts_with("chat:") && redis.run::<i64>(&["TTL", &key]).await > 0, "{key}");
    }
    drop(redis);
    for _ in 0..4 {
        say(&server, ROOM, "mallory", "cheap gold").await;
        say(&server, ROOM, "bob", "hello").await;
    }
    assert_eq!(seen(&server, ROOM, "carol").await.len(), 2 + 4, "two of mallory, all of bob");
    let answer = admin(&server, "GET", "mutes/mallory", "").await;
    assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"));
    for (method, body) in [("PUT", r#"{"for": "1h"}"#), ("DELETE", "")] {
        let answer = admin(&server, method, "mutes/mallory", body).await;
        assert!(answer.status == 503 && answer.body.contains("may have made it"), "{answer:?}");
    }
    let logs = server.stop();
    assert!(logs.contains("without a check"), "{logs}");
    assert!(logs.contains("audit: a mute was lifted is_confirmed=false"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_before_the_check_and_what_is_not_taken_does_not_count() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let flags = ["--redis", &proxy.url(), "--response-timeout", "10m", "--quota", "1100/1h"];
    let server = start(&flags);
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

    proxy.set(Fault::Stall);
    let mut taken = 0;
    for _ in 0..1_200 {
        let answer = post(&server, ROOM, "dave", HELLO).await;
        assert!([202, 503].contains(&answer.status.as_u16()), "{answer:?}");
        taken += usize::from(answer.status == 202);
    }
    assert_eq!(taken, 1024);
    proxy.set(Fault::None);
    checked(&server).await;
    for _ in taken..1_100 {
        assert_eq!(post(&server, ROOM, "dave", HELLO).await.status, 202);
    }
    post(&server, ROOM, "dave", HELLO).await.problem(429);
}

/// It is checked while the server ends. The reply to the mute is lost, and Redis is asked about it in the background.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_checked_and_its_mute_reported_before_the_end() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let rule = ["--rule", "events 3/1h mute 1h", "--response-timeout", "2s"];
    let server = start(&[&["--redis", &proxy.url()], &rule[..]].concat());
    // The first one has the script loaded, so that a mute is one request.
    for _ in 0..3 {
        say(&server, ROOM, "bob", "hello").await;
    }
    proxy.set(Fault::Delay(Duration::from_millis(20)));
    proxy.drop_replies_to("3 messages within", 1);
    for _ in 0..3 {
        assert_eq!(post(&server, ROOM, "mallory", HELLO).await.status, 202);
    }
    let logs = server.stop();
    assert_eq!(proxy.dropped(), 1);
    assert_eq!(logs.matches("audit: muted").count(), 2, "{logs}");
}

#[tokio::test]
async fn posting_has_a_quota_muted_or_not_and_a_room_shows_the_newest_hundred() {
    let server = start(&["--rule", "events 2/1h mute 1h", "--exempt", "bob"]);
    for user in ["mallory", "bob"] {
        for _ in 0..30 {
            assert_eq!(post(&server, ROOM, user, HELLO).await.status, 202);
        }
        let denied = post(&server, "/private/bob", user, HELLO).await;
        assert!(denied.problem(429).ends_with("#quota-exceeded"), "{denied:?}");
        assert!(denied.retry_after().unwrap() <= 10, "{denied:?}");
        seen(&server, ROOM, user).await;
    }
    for number in 0..99 {
        post(&server, ROOM, &format!("user-{number}"), HELLO).await;
    }
    checked(&server).await;
    let shown = seen(&server, ROOM, "carol").await;
    assert_eq!((shown.len(), &*shown[0], &*shown[99]), (100, "bob: hello", "user-98: hello"));
    let long = json!({ "text": "x".repeat(8000) }).to_string();
    for number in 0..9 {
        post(&server, ROOM, &format!("long-{number}"), &long).await;
    }
    checked(&server).await;
    assert_eq!(seen(&server, ROOM, "carol").await.len(), 8, "and of 64 KiB");
    for _ in 2..120 {
        seen(&server, ROOM, "carol").await;
    }
    server.send(server.request("GET", ROOM).header("x-user-id", "carol")).await.problem(429);
}

#[tokio::test]
async fn only_the_two_of_a_pair_read_what_is_private() {
    let server = start(&[]);
    say(&server, "/private/bob", "alice", "hello").await;
    say(&server, "/private/alice", "bob", "hi").await;
    say(&server, "/private/bob", "carol", "psst").await;
    let both = ["alice: hello", "bob: hi"];
    assert_eq!(seen(&server, "/private/bob", "alice").await, both);
    assert_eq!(seen(&server, "/private/alice", "bob").await, both);
    let to_bob = ["alice: hello", "carol: psst"];
    assert_eq!(seen(&server, "/private/bob", "bob").await, to_bob);
    for path in ["/private/alice", "/private/bob", "/private/eve"] {
        assert!(seen(&server, path, "eve").await.is_empty(), "{path}");
        server.get(path).await.problem(401);
        // A cache in front would show it to others.
        let read = server.send(server.request("GET", path).header("x-user-id", "eve")).await;
        assert_eq!(read.header("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn a_message_is_anything_with_a_text() {
    let server = start(&[]);
    let long = "长".repeat(2_000);
    for (number, text) in ["", "a\0b", "👨‍👩‍👧", "\u{202e}", &long].iter().enumerate() {
        say(&server, ROOM, &format!("user-{number}"), text).await;
    }
    for body in ["", "hello", "{}", r#"["hi"]"#, r#"{"text": 5}"#, r#"{"text": "\ud800"}"#] {
        let problem = post(&server, ROOM, "alice", body).await.problem(400);
        assert_eq!(problem, "/problems/bad-message", "{body}");
    }
    let huge = json!({ "text": "x".repeat(10_000) }).to_string();
    post(&server, ROOM, "alice", &huge).await.problem(413);
    server.send_body(server.request("POST", ROOM), HELLO).await.problem(401);
    // A key of this form is hashed, so that no operator could read who it is, and dots are no part of a URL.
    for user in ["sha256:me", "..", "."] {
        assert_eq!(post(&server, ROOM, user, HELLO).await.problem(400), "/problems/bad-user");
    }
    let both = server.request("POST", ROOM).header("x-user-id", "a").header("x-user-id", "b");
    server.send_body(both, HELLO).await.problem(400);
    post(&server, "/private/%ff", "alice", HELLO).await.problem(400);
    server.send(server.request("PUT", ROOM)).await.problem(405);
}

#[tokio::test]
async fn logs_name_users_at_debug_only_and_escaped() {
    // It has characters that end a line or that a terminal obeys.
    let name = HeaderValue::from_bytes("a\u{9b}2Jb\u{2028}c".as_bytes()).unwrap();
    for (level, named) in [("info", false), ("debug", true)] {
        let server = Server::start_logging(CHAT, level, &ADMIN);
        for _ in 0..3 {
            let request = server.request("POST", ROOM).header("x-user-id", name.clone());
            server.send_body(request, r#"{"text": "cheap gold"}"#).await;
        }
        let logs = server.stop();
        assert_eq!(logs.matches("INFO chat_guard::alerts: audit: muted").count(), 1, "{logs}");
        assert_eq!(logs.contains(r#"user="a\u{9b}2Jb\u{2028}c""#), named, "{level}: {logs}");
        assert!(!logs.contains(['\u{9b}', '\u{2028}']) && !logs.contains("gold"), "{logs:?}");
    }
}

#[test]
fn a_failed_start_names_the_way_out() {
    refuses(
        CHAT,
        &[
            (&["--rule", "peers 5/5m mute ever"], "mute \"ever\""),
            (&["--exempt", ""], "1 to 128 bytes"),
        ],
    );
    cannot_start(CHAT);
}
