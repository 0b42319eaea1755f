//! What the SMS gateway promises, as its clients and its operator see it.

mod fairness;
mod fleet;
mod process;
mod sending;

use serde_json::{Value, json};
use test_support::eventually;
use test_support::server_process::{HttpResponse, Server};
use tokio::task::JoinHandle;

const GATEWAY: &str = env!("CARGO_BIN_EXE_sms-gateway");
const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";
/// Starts a server that waits for Redis as long as a busy machine may need.
fn start(flags: &[&str]) -> Server {
    Server::start(GATEWAY, &[&["--response-timeout", "10s"], flags].concat())
}

/// Asks a server to stop, and returns its logs.
fn stop(server: Server) -> String {
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success(), "{logs}");
    logs
}

fn message(institution: &str, to: &str) -> String {
    json!({ "institution": institution, "channel": "otp", "to": to, "text": "Hello" }).to_string()
}

async fn sms(server: &Server, institution: &str, to: &str) -> HttpResponse {
    server.send_body(server.request("POST", "/sms"), message(institution, to)).await
}

fn spawn_sms(server: &Server, institution: &str, to: &str) -> JoinHandle<HttpResponse> {
    server.spawn_body(server.request("POST", "/sms"), message(institution, to))
}

async fn put(server: &Server, path: &str, body: &str) -> HttpResponse {
    server.send_body(server.request("PUT", path), body.to_owned()).await
}

/// Returns the levels that a 429 names.
fn violated(answer: &HttpResponse) -> Value {
    assert!(answer.problem(429).ends_with("#quota-exceeded"));
    answer.json()["violated-policies"].clone()
}

/// Waits until the server's policies are as `wanted`.
async fn policies_until(server: &Server, wanted: impl Fn(&Value) -> bool) {
    let is_wanted = async || wanted(&server.get("/policies").await.json());
    eventually("the policies are as wanted", is_wanted).await;
}

/// Sends one receiver so many messages through two servers at once, and returns how many were sent.
/// Only the receiver's policy may stop any.
async fn sent_by_both(servers: &[Server; 2], messages: usize, to: &str) -> usize {
    let messages: Vec<_> = (0..messages).map(|index| spawn_sms(&servers[index % 2], "bank", to)).collect();
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
