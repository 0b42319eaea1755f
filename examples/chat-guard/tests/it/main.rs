//! What the chat promises, as its users see it.

mod acl;
mod admin;
mod checks;
mod history;
mod logs;
mod rules;

use std::time::Duration;

use http::request::Builder;
use serde_json::{Value, json};
use test_support::server_process::{HttpResponse, Server, cannot_start, refuses};
use test_support::{Redis, eventually};
use tokio::time::sleep;

const CHAT: &str = env!("CARGO_BIN_EXE_chat-guard");
const ROOM: &str = "/rooms/lobby/messages";
const TOKEN: &str = "0123456789abcdef";
const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

/// Starts a server with an admin listener.
fn start(flags: &[&str]) -> Server {
    start_logging("info", flags)
}

fn start_logging(level: &str, flags: &[&str]) -> Server {
    Server::start_logging(CHAT, level, &[&ADMIN[..], flags].concat())
}

fn admin_request(server: &Server, method: &str, user: &str) -> Builder {
    let request = server.admin_request(method, &format!("/admin/mutes/{user}"));
    request.header("authorization", format!("Bearer {TOKEN}"))
}

/// Holds two servers to a promise: one that keeps everything itself and one that has a Redis.
async fn on_both(flags: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&start(flags)).await;
    let redis = Redis::start().await;
    promise(&start(&[flags, &["--redis", &redis.url()]].concat())).await;
}

fn stop(server: Server) -> String {
    server.signal("TERM");
    let (status, logs, printed) = server.stopped();
    assert_eq!((status.code(), printed.len()), (Some(0), 0), "{logs}");
    logs
}

/// Sends a text of a user, and waits until it is checked. The answer is always the same.
async fn say(server: &Server, path: &str, user: &str, text: &str) {
    let answer = post(server, path, user, &json!({ "text": text }).to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    assert_eq!(body["id"].as_str().unwrap().len(), 36, "{body}");
    checked(server).await;
}

async fn checked(server: &Server) {
    let waiting = || server.admin_request("GET", "/admin/waiting");
    let request = || waiting().header("authorization", format!("Bearer {TOKEN}"));
    let is_checked = async || server.send(request()).await.json() == json!({ "messages": 0 });
    eventually("all messages are checked", is_checked).await;
}

async fn post(server: &Server, path: &str, user: &str, body: &str) -> HttpResponse {
    let request = server.request("POST", path).header("x-user-id", user);
    server.send_body(request, body.to_owned()).await
}

/// Returns the messages that a viewer sees.
async fn seen(server: &Server, path: &str, viewer: &str) -> Vec<String> {
    let answer = server.send(server.request("GET", path).header("x-user-id", viewer)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = |post: &Value| format!("{}: {}", post["from"], post["text"]).replace('"', "");
    answer.json().as_array().unwrap().iter().map(text).collect()
}

async fn mute(server: &Server, user: &str) -> Option<Value> {
    let answer = server.send(admin_request(server, "GET", user)).await;
    if answer.status == 404 {
        assert_eq!(answer.problem(404), "/problems/not-muted");
        return None;
    }
    assert_eq!(answer.status, 200, "{answer:?}");
    Some(answer.json())
}

#[tokio::test]
async fn a_mute_is_silent() {
    on_both(&[], async |server| {
        let texts =
            ["Cheap gold!", "CHEAP GOLD", "c h e a p  gold!!!", "cheap goooold", "cheap gold"];
        for text in texts {
            say(server, ROOM, "mallory", text).await;
        }
        say(server, ROOM, "mallory", "what about noodles?").await;
        say(server, "/private/bob", "mallory", "hello").await;
        say(server, ROOM, "bob", "noodles!").await;

        let delivered = ["mallory: Cheap gold!", "mallory: CHEAP GOLD", "bob: noodles!"];
        assert_eq!(seen(server, ROOM, "bob").await, delivered);
        server.get(ROOM).await.problem(401);
        assert_eq!(seen(server, ROOM, "mallory").await.len(), 7, "her own messages are all there");
        assert_eq!(seen(server, "/private/bob", "bob").await, Vec::<String>::new());
        assert_eq!(seen(server, "/private/bob", "mallory").await, ["mallory: hello"]);

        // The third message has muted her for six hours, the fifth for twelve.
        let muted = mute(server, "mallory").await.unwrap();
        assert_eq!(
            (&muted["user"], &muted["rule"]),
            (&"mallory".into(), &"similar 5/300s 90% mute 12h".into())
        );
        let left = muted["remaining_seconds"].as_u64().unwrap();
        assert!((12 * 3600 - 60..=12 * 3600).contains(&left), "{muted}");
        assert_eq!(mute(server, "bob").await, None);
    })
    .await;
}

#[tokio::test]
async fn writing_to_many_strangers_mutes() {
    on_both(&[], async |server| {
        for number in 0..20 {
            let chat = ["/private/bob", "/private/carol"][number % 2];
            let first = u32::try_from(0x4e00 + 9 * number).unwrap();
            let other: String = (first..first + 9).filter_map(char::from_u32).collect();
            say(server, chat, "alice", &other).await;
        }
        assert_eq!(mute(server, "alice").await, None, "two friends, however many messages");
        let hellos = ["你好", "bonjour à tous", "guten Tag!", "o hai there", "¿qué tal?", "ciao"];
        for (number, hello) in hellos.iter().enumerate() {
            say(server, &format!("/private/peer-{number}"), "mallory", hello).await;
        }
        assert_eq!(mute(server, "mallory").await.unwrap()["rule"], "peers 5/180s mute 24h");
        assert_eq!(seen(server, "/private/peer-3", "peer-3").await, ["mallory: o hai there"]);
        assert!(seen(server, "/private/peer-4", "peer-4").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_mute_ends_and_can_be_lifted() {
    let rules = ["--rule", "similar 2/1h 90% mute 700ms", "--rule", "peers 2/1h mute 24h"];
    on_both(&rules, async |server| {
        say(server, ROOM, "alice", "lunch at one?").await;
        say(server, ROOM, "alice", "LUNCH AT ONE ?").await;
        assert_eq!(seen(server, ROOM, "bob").await, ["alice: lunch at one?"]);
        while mute(server, "alice").await.is_some() {
            sleep(Duration::from_millis(20)).await;
        }
        say(server, ROOM, "alice", "then not").await;
        assert_eq!(seen(server, ROOM, "bob").await, ["alice: lunch at one?", "alice: then not"]);

        say(server, "/private/a", "carol", "hello").await;
        say(server, "/private/b", "carol", "good morning").await;
        assert!(mute(server, "carol").await.is_some());
        let lifted = server.send(admin_request(server, "DELETE", "carol")).await;
        assert_eq!(lifted.status, 204);
        say(server, "/private/b", "carol", "as I said").await;
        assert_eq!(seen(server, "/private/b", "b").await, ["carol: as I said"]);
    })
    .await;
}

#[tokio::test]
async fn a_message_is_anything_with_a_text() {
    let server = start(&[]);
    let long = "长".repeat(10_000);
    for (number, text) in ["", "a\0b", "👨‍👩‍👧", "\u{202e}", &long].iter().enumerate() {
        say(&server, ROOM, &format!("user-{number}"), text).await;
    }
    for body in ["", "hello", "{}", r#"{"text": 5}"#, r#"{"text": "\ud800"}"#] {
        let problem = post(&server, ROOM, "alice", body).await.problem(400);
        assert_eq!(problem, "/problems/bad-message", "{body}");
    }
    let huge = json!({ "text": "x".repeat(70_000) }).to_string();
    post(&server, ROOM, "alice", &huge).await.problem(413);
    let hello = r#"{"text": "hello"}"#;
    server.send_body(server.request("POST", ROOM), hello).await.problem(401);
    let both = server.request("POST", ROOM).header("x-user-id", "a").header("x-user-id", "b");
    assert_eq!(server.send_body(both, hello).await.problem(400), "/problems/bad-user");
    post(&server, "/private/%ff", "alice", hello).await.problem(400);
    server.send(server.request("PUT", ROOM)).await.problem(405);
}

#[tokio::test]
async fn servers_on_one_redis_share_mutes() {
    let redis = Redis::start().await;
    let servers = [(); 2].map(|()| start(&["--redis", &redis.url()]));
    for number in 0..4 {
        say(&servers[number % 2], ROOM, "mallory", "cheap gold").await;
    }
    for server in &servers {
        assert_eq!(seen(server, ROOM, "bob").await, ["mallory: cheap gold"]);
        let reason = "3 messages within 60s at 100% similarity";
        assert_eq!(mute(server, "mallory").await.unwrap()["reason"], reason);
    }
    for key in redis.run::<Vec<String>>(&["KEYS", "*"]).await {
        let expected = key == "chat:mark" || key.starts_with("chat:{=mallory}:speech:");
        assert!(expected, "{key}");
        assert!(redis.run::<i64>(&["TTL", &key]).await > 0, "{key}");
    }
    let elsewhere = start(&["--redis", &redis.url(), "--prefix", "other"]);
    assert_eq!(mute(&elsewhere, "mallory").await, None);
}

#[tokio::test]
async fn a_chat_without_its_redis_goes_on() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    drop(redis);
    for _ in 0..4 {
        say(&server, ROOM, "mallory", "cheap gold").await;
    }
    assert_eq!(seen(&server, ROOM, "bob").await.len(), 4);
    let answer = server.send(admin_request(&server, "GET", "mallory")).await;
    assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"));
    answer.retry_after();
    assert!(stop(server).contains("without a check"));
}

#[test]
fn a_failed_start_names_the_way_out() {
    refuses(
        CHAT,
        &[
            (&["--rule", "peers 5/5m mute ever"], "mute \"ever\""),
            (&["--min-length", "301"], "301"),
            (&["--exempt", ""], "1 to 128 bytes"),
            (&["--admin", "0.0.0.0:1"], "other machines could reach it"),
        ],
    );
    cannot_start(CHAT);
}
