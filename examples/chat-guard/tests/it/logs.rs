//! What reaches the logs, and how much of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use http::HeaderValue;
use serde_json::Value;
use test_support::eventually;
use test_support::server_process::Server;
use tokio::time::sleep;

use super::{CHAT, ROOM, admin_request, checked, post, say, start_logging, stop};

/// A name with characters that end a line or that a terminal obeys, and its escaped form.
const FORGED: &str = "a\u{9b}2Jb\u{2028}c\u{202e}d";
const ESCAPED: &str = r"a\u{9b}2Jb\u{2028}c\u{202e}d";

#[tokio::test]
async fn logs_name_users_at_debug_only() {
    for (level, named) in [("info", false), ("debug", true)] {
        let server = start_logging(level, &[]);
        for _ in 0..3 {
            say(&server, ROOM, "Lysistrata", "cheap gold").await;
        }
        server.send(admin_request(&server, "DELETE", "Lysistrata")).await;
        let logs = stop(server);
        assert_eq!(logs.matches("INFO chat_guard::audit: audit: muted").count(), 1, "{logs}");
        assert!(logs.contains("a mute was lifted"), "{logs}");
        assert_eq!(logs.contains("Lysistrata"), named, "{level}: {logs}");
        assert!(!logs.contains("gold"), "{logs}");
    }
}

#[tokio::test]
async fn names_are_logged_in_escaped_form() {
    let server = Server::start_logging(CHAT, "debug", &[]);
    for _ in 0..3 {
        let name = HeaderValue::from_bytes(FORGED.as_bytes()).unwrap();
        let request = server.request("POST", ROOM).header("x-user-id", name);
        let answer = server.send_body(request, r#"{"text": "cheap gold"}"#).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    let logs = stop(server);
    assert!(logs.contains(ESCAPED), "{logs:?}");
    for it in ['\u{9b}', '\u{2028}', '\u{202e}'] {
        assert!(!logs.contains(it), "{it:?} in {logs:?}");
    }
    assert!(logs.contains(&format!("user=\"{ESCAPED}\"")), "not only by the writer: {logs}");
}

#[tokio::test]
async fn many_mutes_are_few_lines_and_the_next_alert_arrives() {
    let alerts = Arc::<Mutex<Vec<Value>>>::default();
    let taken = alerts.clone();
    let take = axum::routing::post(async move |Json(alert): Json<Value>| {
        // As a chat service far away.
        sleep(Duration::from_millis(20)).await;
        taken.lock().unwrap().push(alert);
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = axum::Router::new().route("/", take);
    tokio::spawn(async move { axum::serve(listener, receiver).await });

    let rule = ["--rule", "similar 2/1h 90% mute 1h", "--alert-webhook", &url];
    let server = start_logging("debug", &rule);
    for number in 0..1000 {
        for _ in 0..2 {
            let text = r#"{"text": "buy cheap gold"}"#;
            post(&server, ROOM, &format!("throwaway-{number}"), text).await;
        }
    }
    checked(&server).await;
    for _ in 0..2 {
        say(&server, ROOM, "mallory", "buy cheap gold").await;
    }
    eventually("the last alert arrives", async || {
        alerts.lock().unwrap().iter().any(|it| it["user"] == "mallory")
    })
    .await;
    let all: u64 = alerts.lock().unwrap().iter().map(|it| it["times"].as_u64().unwrap_or(1)).sum();
    assert_eq!(all, 1001, "each is sent or counted");
    sleep(Duration::from_secs(1)).await;
    let logs = stop(server);
    let lines: Vec<&str> = logs.lines().filter(|line| line.contains("audit: muted")).collect();
    assert!(lines.len() < 100, "{} lines", lines.len());
    let times = |line: &&str| line.split_once("times=")?.1.split(' ').next()?.parse::<u64>().ok();
    assert_eq!(lines.iter().filter_map(times).sum::<u64>(), 1001, "{lines:?}");
}
