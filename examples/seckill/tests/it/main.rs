//! What the flash-sale server promises, as its clients and its operator see it.
//!
//! This file is the vocabulary of all tests here: servers, what a user and an operator do there, and what they see.

mod admin;
mod draw;
mod opening;
mod orders;
mod payments;
mod process;
mod ready;
mod replication;
mod script;
mod stock;

use std::time::{Duration, Instant};

use http::request::Builder;
use serde_json::{Value, json};
use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::proxy::{Fault, Proxy};
use test_support::requests::HttpResponse;
use test_support::server_process::{Server, TOKEN, fails};
use test_support::{Cluster, MASTER, Redis, eventually, join_all};
use tokio::time::sleep;

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");
/// The flags of an admin listener, with `TOKEN`.
const ADMIN: &str = "--admin 127.0.0.1:0 --admin-token 0123456789abcdef-the-token";
/// The flags of limits that no test reaches.
const FREE: &str = "--quota 9999/60s --ip-quota off --accounts off";
/// The flags of a draw that has been.
const OPEN_DRAW: &str = "--opens-at 2020-01-01T00:00:00Z";
const NO_ORDER: &str = "iphone.00000000-0000-4000-8000-000000000000";
const HOUR: u64 = 3600;

fn words(flags: &str) -> Vec<&str> {
    flags.split_whitespace().collect()
}

/// Starts a server that keeps everything itself, unless the flags name a Redis.
fn alone(flags: &str) -> Server {
    Server::start(SECKILL, &words(flags))
}

/// Starts a server that waits for Redis as long as a busy machine may need.
fn on_redis(redis: &Redis, flags: &str) -> Server {
    alone(&format!("--redis {} --response-timeout 10s {flags}", redis.url()))
}

/// Holds two servers to a promise at the same time: one that keeps everything itself, and one that has a Redis and no
/// more rights there than SECURITY.md gives it.
async fn on_both(flags: &str, promise: impl AsyncFn(&Server)) {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::RunThePrograms).await;
    let on_redis = format!("{flags} --redis {url} --prefix limiter --response-timeout 10s");
    let (limited, alone) = (alone(&on_redis), alone(flags));
    tokio::join!(promise(&alone), promise(&limited));
    nothing_was_refused(&redis).await;
}

/// Checks that a server can't be started with this Redis, and says why. Returns its logs.
fn does_not_start(redis: &Redis, flags: &str, why: &str) -> String {
    let flags = format!("--listen 127.0.0.1:0 --redis {} {flags}", redis.url());
    fails(SECKILL, &words(&flags), 1, why)
}

/// Checks that a server that is started finds the stock lost.
fn stock_is_lost(redis: &Redis) {
    let hint = does_not_start(redis, "", "Redis has lost the stock of iphone");
    // Otherwise a new sale would have the old opening.
    assert!(hint.contains("{iphone}:draw'; redis-cli -c DEL seckill:opening"), "{hint}");
}

/// Sends a request about a SKU or an order, of a user.
async fn by(server: &Server, user: &str, method: &str, path: &str) -> HttpResponse {
    server.send(server.request(method, path).header("x-user-id", user)).await
}

async fn enter(server: &Server, user: &str) -> HttpResponse {
    by(server, user, "POST", "/seckill/iphone/entries").await
}

/// Returns where a user is in the sale of the iPhone.
async fn entry(server: &Server, user: &str) -> Value {
    by(server, user, "GET", "/seckill/iphone/entry").await.json()
}

/// Waits until a user is in that state, as often as the server allows.
async fn becomes(server: &Server, user: &str, state: &str) -> Value {
    for _ in 0..30 {
        let seen = entry(server, user).await;
        if seen["state"] == state {
            return seen;
        }
        sleep(Duration::from_millis(seen["again_in_ms"].as_u64().unwrap_or(1000))).await;
    }
    panic!("{user} never is in the state {state}");
}

/// Orders a piece of the draw of the iPhone.
async fn order(server: &Server, user: &str, ticket: &Value) -> HttpResponse {
    let request = server.order_request("iphone", user);
    server.send(request.header("x-seckill-ticket", ticket.as_str().unwrap_or_default())).await
}

/// Orders in a draw with a free piece.
async fn order_at_turn(server: &Server, user: &str) -> HttpResponse {
    let entered = enter(server, user).await.json();
    order(server, user, &entered["ticket"]).await
}

/// Begins the call by which the payment provider says that an order is paid.
fn payment(server: &Server, order: &Value) -> Builder {
    let path = format!("/orders/{}/payment", order["order_id"].as_str().unwrap());
    server.request("POST", &path).header("authorization", format!("Bearer {TOKEN}"))
}

async fn pay(server: &Server, order: &Value, id: &str) -> HttpResponse {
    server.send_body(payment(server, order), json!({ "payment_id": id }).to_string()).await
}

/// Sends an order of each of so many users at once, to the servers in turn.
async fn rush(servers: &[Server], users: usize) -> Vec<HttpResponse> {
    let orders = servers.iter().cycle().take(users).enumerate().map(|(user, server)| {
        server.spawn(server.order_request("iphone", &format!("user-{user}")))
    });
    let answers = join_all(orders.collect::<Vec<_>>()).await;
    answers.into_iter().map(Result::unwrap).collect()
}

fn count(answers: &[HttpResponse], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// Returns what the page of a SKU polls.
async fn level(server: &Server) -> Value {
    server.get("/seckill/iphone").await.json()
}

async fn live(server: &Server) -> Value {
    server.ask("GET", "/admin/live", "").await.json()
}

async fn until_ready(server: &Server) {
    let is_ready = async || server.get("/readyz").await.status == 200;
    eventually("it is ready", is_ready).await;
}

/// Checks some members of a document.
#[track_caller]
fn shows(seen: &Value, expected: Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&seen[name], value, "{name} of {seen}");
    }
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
