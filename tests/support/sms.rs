//! Messages to an SMS gateway that runs, and its policies.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use test_support::server_process::{Answer, Server};

/// How long to wait for what is to come soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for Redis as long as a busy machine may need.
pub const PATIENT: [&str; 2] = ["--response-timeout", "10s"];

pub fn start(arguments: &[&str]) -> Server {
    Server::start("sms_gateway", &[&PATIENT[..], arguments].concat())
}

pub fn message(institution: &str, channel: &str, to: &str) -> String {
    json!({ "institution": institution, "channel": channel, "to": to, "text": "Hello" }).to_string()
}

/// Sends a message.
pub async fn sms(server: &Server, institution: &str, channel: &str, to: &str) -> Answer {
    post(server, message(institution, channel, to)).await
}

/// Sends a body to where messages go.
pub async fn post(server: &Server, body: impl Into<axum::body::Body>) -> Answer {
    server.send_body(server.request("POST", "/sms"), body).await
}

/// Sends a message from a task of its own.
pub fn spawn_sms(
    server: &Server,
    institution: &str,
    channel: &str,
    to: &str,
) -> JoinHandle<Answer> {
    server.spawn_body(server.request("POST", "/sms"), message(institution, channel, to))
}

/// Sends one receiver so many messages through two servers at once, whose receivers' policy is all
/// that may stop any, and returns how many were sent.
pub async fn sent_by_both(servers: &[Server; 2], messages: usize, to: &str) -> usize {
    let messages: Vec<_> =
        (0..messages).map(|index| spawn_sms(&servers[index % 2], "bank", "otp", to)).collect();
    let mut sent = 0;
    for message in messages {
        let answer = message.await.unwrap();
        match answer.status.as_u16() {
            202 => sent += 1,
            _ => assert_eq!(violated(&answer), json!(["receiver"])),
        }
    }
    sent
}

pub async fn put(server: &Server, path: &str, body: &str) -> Answer {
    server.send_body(server.request("PUT", path), body.to_owned()).await
}

/// Returns the levels that a 429 names.
pub fn violated(answer: &Answer) -> Value {
    assert!(answer.problem(429).ends_with("#quota-exceeded"));
    answer.json()["violated-policies"].clone()
}

/// Waits until something holds; returns how long that took.
pub async fn until(holds: impl AsyncFn() -> bool) -> Duration {
    let asked = Instant::now();
    while !holds().await {
        assert!(asked.elapsed() < PATIENCE, "it does not come about");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    asked.elapsed()
}

/// Waits until the server's policies are as `wanted`; returns how long that took.
pub async fn policies_until(server: &Server, wanted: impl Fn(&Value) -> bool) -> Duration {
    until(async || wanted(&server.get("/policies").await.json())).await
}
