//! The chat_guard example as its users meet it: in this process alone, and on Redis.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::time::Duration;

use serde_json::{Value, json};
use test_support::Redis;
use test_support::server_process::{Answer, Server, run};

const ROOM: &str = "/rooms/lobby/messages";

fn start(flags: &[&str]) -> Server {
    Server::start("chat_guard", flags)
}

/// Sends a text of a user; the answer is always the same.
async fn say(server: &Server, path: &str, user: &str, text: &str) {
    let answer = post(server, path, user, &json!({ "text": text }).to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    assert_eq!(body["id"].as_str().unwrap().len(), 36, "{body}");
}

async fn post(server: &Server, path: &str, user: &str, body: &str) -> Answer {
    let request = server.request("POST", path).header("x-user-id", user);
    server.send_body(request, body.to_owned()).await
}

/// Returns what somebody sees, or with an empty name what whoever does not say who they are sees.
async fn seen(server: &Server, path: &str, viewer: &str) -> Vec<String> {
    let answer = server.send(server.request("GET", path).header("x-user-id", viewer)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let posts = answer.json();
    let text = |post: &Value| format!("{}: {}", post["from"], post["text"]).replace('"', "");
    posts.as_array().unwrap().iter().map(text).collect()
}

async fn mute(server: &Server, user: &str) -> Option<Value> {
    let answer = server.get(&format!("/admin/mutes/{user}")).await;
    if answer.status == 404 {
        assert_eq!(answer.problem(404), "/problems/not-muted");
        return None;
    }
    assert_eq!(answer.status, 200, "{answer:?}");
    Some(answer.json())
}

/// Runs a story alone and on Redis.
macro_rules! stories {
    ($($name:ident),* $(,)?) => {
        mod alone {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&[]).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::Redis::start().await;
                super::$name(&["--redis", &redis.url()]).await;
            })*
        }
    };
}

stories!(
    who_repeats_a_message_is_muted_and_sees_no_difference,
    who_writes_to_one_stranger_after_another_is_muted,
    a_mute_ends_and_can_be_lifted,
    behind_a_queue_a_message_is_delivered_first_and_judged_then,
    a_message_is_anything_with_a_text,
);

async fn who_repeats_a_message_is_muted_and_sees_no_difference(flags: &[&str]) {
    let server = start(flags);
    say(&server, ROOM, "bob", "has anybody an idea for lunch?").await;
    for text in ["Cheap gold!", "CHEAP GOLD", "c h e a p  gold!!!", "cheap goooold", "cheap gold!"]
    {
        say(&server, ROOM, "mallory", text).await;
    }
    say(&server, ROOM, "mallory", "what about noodles?").await;
    say(&server, ROOM, "bob", "noodles? anybody?").await;
    say(&server, "/rooms/other/messages", "mallory", "hello").await;
    say(&server, "/private/bob", "mallory", "hello").await;

    let delivered = [
        "bob: has anybody an idea for lunch?",
        "mallory: Cheap gold!",
        "mallory: CHEAP GOLD",
        "bob: noodles? anybody?",
    ];
    assert_eq!(seen(&server, ROOM, "bob").await, delivered);
    assert_eq!(seen(&server, ROOM, "").await, delivered);
    let own = seen(&server, ROOM, "mallory").await;
    let all = [
        "bob: has anybody an idea for lunch?",
        "mallory: Cheap gold!",
        "mallory: CHEAP GOLD",
        "mallory: c h e a p  gold!!!",
        "mallory: cheap goooold",
        "mallory: cheap gold!",
        "mallory: what about noodles?",
        "bob: noodles? anybody?",
    ];
    assert_eq!(own, all, "nothing tells mallory");
    assert_eq!(seen(&server, "/rooms/other/messages", "bob").await, Vec::<String>::new());
    assert_eq!(seen(&server, "/private/bob", "bob").await, Vec::<String>::new());
    assert_eq!(seen(&server, "/private/bob", "mallory").await, ["mallory: hello"]);

    // The third message had her muted for six hours, the fifth for twelve.
    let mute = mute(&server, "mallory").await.unwrap();
    assert_eq!(mute["user"], "mallory");
    assert_eq!(mute["rule"], "similar 5/300s 90% mute 12h");
    assert_eq!(mute["reason"], "5 messages within 300s at 90% similarity");
    let until: jiff::Timestamp = mute["until"].as_str().unwrap().parse().unwrap();
    let left = Duration::try_from(until.duration_since(jiff::Timestamp::now())).unwrap();
    let twelve_hours = Duration::from_secs(12 * 3600);
    assert!(left <= twelve_hours + Duration::from_secs(1), "{mute}");
    assert!(left > twelve_hours - Duration::from_secs(60), "{mute}");
    assert!(mute["remaining_seconds"].as_u64().unwrap() <= 12 * 3600);
    assert_eq!(self::mute(&server, "bob").await, None);

    server.signal("TERM");
    let (status, logs, printed) = server.stopped();
    assert_eq!((status.code(), printed.len()), (Some(0), 0), "{logs}");
    assert_eq!(logs.matches("audit: muted").count(), 2, "{logs}");
    for secret in ["mallory", "bob", "gold", "noodles"] {
        assert!(!logs.contains(secret), "{logs}");
    }
}

async fn who_writes_to_one_stranger_after_another_is_muted(flags: &[&str]) {
    let server = start(flags);
    for number in 0..20 {
        let chat = ["/private/bob", "/private/carol"][number % 2];
        say(&server, chat, "alice", &format!("{number} {}", "别的话".repeat(number))).await;
    }
    assert_eq!(mute(&server, "alice").await, None, "two friends, however many messages");
    let hellos = ["你好", "bonjour à tous", "guten Tag!", "o hai there", "¿qué tal?", "ciao bella"];
    for (number, hello) in hellos.iter().enumerate() {
        say(&server, &format!("/private/peer-{number}"), "mallory", hello).await;
    }
    let mute = mute(&server, "mallory").await.unwrap();
    assert_eq!(mute["rule"], "peers 5/180s mute 24h");
    assert_eq!(mute["reason"], "5 private-chat peers within 180s");
    assert_eq!(seen(&server, "/private/peer-3", "peer-3").await, ["mallory: o hai there"]);
    for peer in ["peer-4", "peer-5"] {
        assert!(seen(&server, &format!("/private/{peer}"), peer).await.is_empty());
    }
}

async fn a_mute_ends_and_can_be_lifted(flags: &[&str]) {
    let rules = ["--rule", "similar 2/1h 90% mute 700ms", "--rule", "peers 2/1h mute 24h"];
    let server = start(&[flags, &rules].concat());
    say(&server, ROOM, "alice", "lunch?").await;
    say(&server, ROOM, "alice", "LUNCH ?").await;
    assert_eq!(seen(&server, ROOM, "bob").await, ["alice: lunch?"]);
    while mute(&server, "alice").await.is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    say(&server, ROOM, "alice", "then not").await;
    assert_eq!(seen(&server, ROOM, "bob").await, ["alice: lunch?", "alice: then not"]);

    say(&server, "/private/a", "carol", "hello").await;
    say(&server, "/private/b", "carol", "good morning").await;
    assert_eq!(mute(&server, "carol").await.unwrap()["rule"], "peers 2/1h mute 24h");
    let lifted = server.send(server.request("DELETE", "/admin/mutes/carol")).await;
    assert_eq!(lifted.status, 204);
    assert_eq!(mute(&server, "carol").await, None);
    say(&server, "/private/b", "carol", "as I said").await;
    assert_eq!(seen(&server, "/private/b", "b").await, ["carol: as I said"]);
}

async fn behind_a_queue_a_message_is_delivered_first_and_judged_then(flags: &[&str]) {
    let rule = ["--queue", "100", "--rule", "similar 2/1h 90% mute 1h"];
    let server = start(&[flags, &rule].concat());
    say(&server, ROOM, "mallory", "cheap gold").await;
    say(&server, ROOM, "mallory", "cheap gold").await;
    while mute(&server, "mallory").await.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    say(&server, ROOM, "mallory", "cheap gold").await;
    assert_eq!(seen(&server, ROOM, "bob").await, ["mallory: cheap gold"; 2]);
    assert_eq!(seen(&server, ROOM, "mallory").await.len(), 3);
}

async fn a_message_is_anything_with_a_text(flags: &[&str]) {
    let server = start(flags);
    let long = "长".repeat(10_000);
    for (number, text) in ["", "好", "a\0b", "👨‍👩‍👧", "\u{202e}", &long].iter().enumerate()
    {
        say(&server, ROOM, &format!("user-{number}"), text).await;
    }
    assert_eq!(seen(&server, ROOM, "").await.len(), 6);
    for body in
        ["", "hello", "{}", "[]", r#"{"text": 5}"#, r#"{"text": null}"#, r#"{"text": "\ud800"}"#]
    {
        let problem = post(&server, ROOM, "alice", body).await.problem(400);
        assert_eq!(problem, "/problems/bad-message", "{body}");
    }
    let request = server.request("POST", ROOM).header("x-user-id", "alice");
    let not_utf8 = [b"{\"text\": \"", &[0xff_u8, 0xfe][..], b"\"}"].concat();
    server.send_body(request, not_utf8).await.problem(400);
    let huge = json!({ "text": "x".repeat(300_000) }).to_string();
    assert_eq!(
        post(&server, ROOM, "alice", &huge).await.problem(413),
        "/problems/message-too-long"
    );

    let hello = r#"{"text": "hello"}"#;
    let nobody = server.send_body(server.request("POST", ROOM), hello).await;
    assert_eq!(nobody.problem(401), "/problems/no-user");
    let both = server.request("POST", ROOM).header("x-user-id", "a").header("x-user-id", "b");
    assert_eq!(server.send_body(both, hello).await.problem(400), "/problems/bad-user");
    let long_name = "x".repeat(129);
    assert_eq!(post(&server, ROOM, &long_name, hello).await.problem(400), "/problems/bad-user");
    let path = format!("/rooms/{long_name}/messages");
    assert_eq!(post(&server, &path, "alice", hello).await.problem(400), "/problems/bad-name");
    assert_eq!(
        post(&server, "/private/%ff", "alice", hello).await.problem(400),
        "/problems/bad-name"
    );
    server.get("/nowhere").await.problem(404);
    server.send(server.request("PUT", ROOM)).await.problem(405);
    assert_eq!(server.get("/healthz").await.body, "ok");
}

#[tokio::test]
async fn servers_on_one_redis_share_mutes_and_count_together() {
    let redis = Redis::start().await;
    let servers = [(); 2].map(|()| start(&["--redis", &redis.url()]));
    for number in 0..4 {
        say(&servers[number % 2], ROOM, "mallory", "cheap gold").await;
    }
    for server in &servers {
        assert_eq!(seen(server, ROOM, "bob").await, ["mallory: cheap gold"]);
        assert_eq!(
            mute(server, "mallory").await.unwrap()["reason"],
            "3 messages within 60s at 100% similarity"
        );
    }
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        assert!(key.starts_with("chat:{=mallory}:speech:"), "{key}");
        assert!(redis.run::<i64>(&["TTL", &key]).await > 0, "{key}");
    }
    let elsewhere = start(&["--redis", &redis.url(), "--prefix", "other"]);
    assert_eq!(mute(&elsewhere, "mallory").await, None);
}

#[tokio::test]
async fn without_its_redis_a_chat_goes_on_unwatched() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    drop(redis);
    for _ in 0..4 {
        say(&server, ROOM, "mallory", "cheap gold").await;
    }
    assert_eq!(seen(&server, ROOM, "bob").await.len(), 4);
    let answer = server.get("/admin/mutes/mallory").await;
    assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"));
    answer.retry_after();
    server.signal("INT");
    let (status, logs, _) = server.stopped();
    assert!(status.success() && logs.contains("unjudged") && !logs.contains("mallory"), "{logs}");
}

#[tokio::test]
async fn logs_name_users_only_when_asked_to() {
    for (level, named) in [("info", false), ("debug", true)] {
        let server = Server::start_logging("chat_guard", level, &[]);
        for _ in 0..3 {
            say(&server, ROOM, "Lysistrata", "cheap gold").await;
        }
        server.send(server.request("DELETE", "/admin/mutes/Lysistrata")).await;
        server.signal("TERM");
        let (_, logs, _) = server.stopped();
        assert!(logs.contains("a mute was lifted"), "{logs}");
        assert_eq!(logs.contains("Lysistrata"), named, "{level}: {logs}");
        assert!(!logs.contains("gold"), "{logs}");
    }
}

#[test]
fn a_wrong_flag_exits_with_2_and_names_the_part() {
    let cases: &[(&[&str], &str)] = &[
        (&["--rule", "similar 5/5m mute 12h"], "is not a rule"),
        (&["--rule", "words 5/5m mute 12h"], "kind \"words\""),
        (&["--rule", "similar 5/5m 900% mute 12h"], "similarity \"900%\""),
        (&["--rule", "peers 5/5m mute ever"], "mute \"ever\""),
        (&["--rule", "events 1/5m mute 1h"], "count is 1"),
        (&["--queue", "0"], "--queue"),
        (&["--prefix", "a{b}"], "a prefix is"),
        (&["--listen", "3000"], "--listen"),
        (&["--rules", "x"], "--rule"),
    ];
    test_support::server_process::refuses("chat_guard", cases);
}

#[test]
fn help_names_every_flag_the_rules_and_a_first_request() {
    let output = run("chat_guard", &["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    let flags = ["--listen", "--redis", "--prefix", "--rule", "--queue"];
    let rules = ["similar 5/5m 90% mute 12h", "peers 9/5m mute 48h", "curl", "/admin/mutes/{user}"];
    for part in flags.iter().chain(&rules) {
        assert!(help.contains(part), "{part} is missing: {help}");
    }
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_password() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    // Nothing listens on port 1, which takes root to open.
    let down = ["--listen", "127.0.0.1:0", "--redis", "redis://:hunter2@127.0.0.1:1/0"];
    let no_url = ["--listen", "127.0.0.1:0", "--redis", "http://:hunter2@127.0.0.1"];
    let cases: &[(&[&str], &str)] =
        &[(&down, "can't be reached"), (&no_url, "--redis"), (&["--listen", &taken.1], &taken.1)];
    for (flags, part) in cases {
        let output = run("chat_guard", flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{flags:?}: {stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}
