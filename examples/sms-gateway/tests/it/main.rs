//! What the SMS gateway promises, as its clients and its operator see it.

mod acl;
mod alerts;
mod changes;
mod fairness;
mod fleet;
mod hold;
mod lost_redis;
mod operator;
mod policy_file;
mod process;
mod sending;

use axum::http::request::Builder;
use serde_json::{Value, json};
use test_support::eventually;
use test_support::server_process::{HttpResponse, Server};
use tokio::task::JoinHandle;

const GATEWAY: &str = env!("CARGO_BIN_EXE_sms-gateway");
const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";
const TOKEN: &str = "0123456789abcdef";
/// The admin listener, on a free port.
const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

/// What leaves half of each channel, destination and receiver to the other institutions.
const SHARE: [&str; 2] = ["--institution-share", "50%"];

/// Starts a server that waits for Redis as long as a busy machine may need. One institution may take all,
/// unless the flags say something else.
fn start(flags: &[&str]) -> Server {
    let share = if flags.contains(&SHARE[0]) { &[][..] } else { &["--institution-share", "100%"] };
    Server::start(GATEWAY, &[&["--response-timeout", "10s"], &ADMIN[..], share, flags].concat())
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

/// Begins a request of the operator.
fn operator(server: &Server, method: &str, path: &str) -> Builder {
    server.admin_request(method, path).header("authorization", format!("Bearer {TOKEN}"))
}

async fn put(server: &Server, path: &str, body: &str) -> HttpResponse {
    server.send_body(operator(server, "PUT", path), body.to_owned()).await
}

async fn delete(server: &Server, path: &str) -> HttpResponse {
    server.send(operator(server, "DELETE", path)).await
}

/// Returns the threshold that is configured for a level.
async fn configured(server: &Server, level: &str) -> Value {
    shown(server, "/policies").await[level]["configured"].clone()
}

/// Reads what a route of the admin listener shows.
async fn shown(server: &Server, path: &str) -> Value {
    server.send(operator(server, "GET", path)).await.json()
}

/// Returns the levels that a 429 names.
fn violated(answer: &HttpResponse) -> Value {
    assert!(answer.problem(429).ends_with("#quota-exceeded"));
    answer.json()["violated-policies"].clone()
}

/// Waits until the server's policies are as `wanted`.
async fn policies_until(server: &Server, wanted: impl Fn(&Value) -> bool) {
    let is_wanted = async || wanted(&shown(server, "/policies").await);
    eventually("the policies are as wanted", is_wanted).await;
}

/// Sends one receiver so many messages through two servers at once, and returns how many were sent.
/// Only the receiver's policy may stop any.
async fn sent_by_both(servers: &[Server; 2], messages: usize, to: &str) -> usize {
    let messages: Vec<_> =
        (0..messages).map(|index| spawn_sms(&servers[index % 2], "bank", to)).collect();
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
