//! What the flash-sale server promises, as its clients and its operator see it.

mod admin;
mod draw;
mod opening;
mod orders;
mod payments;
mod process;
mod ready;
mod replication;
mod stock;

use http::request::Builder;
use serde_json::{Value, json};
use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::requests::HttpResponse;
use test_support::server_process::{Server, TOKEN, fails};
use test_support::{Redis, eventually};

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");
/// The flags of an admin listener, with `TOKEN`.
const ADMIN: &str = "--admin 127.0.0.1:0 --admin-token 0123456789abcdef-the-token";
/// The flags of limits that no test reaches.
const FREE: &str = "--quota 9999/60s --ip-quota off --accounts off";
/// The flags of a draw that has been.
const OPEN_DRAW: &str = "--opens-at 2020-01-01T00:00:00Z";
const NO_ORDER: &str = "iphone.00000000-0000-4000-8000-000000000000";

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

/// Calls the script of the stock as a server does that was told of no history: with the opening, the lengths of a turn and
/// of the time to pay, and from ARGV[6] on with what follows. Returns what came of it, the user's order, and REPLY[5].
async fn sale(redis: &Redis, sku: &str, op: &str, arguments: &str) -> (String, String, u64) {
    let keys = "stock buyers orders line held paid returned refunds payments draw".split(' ');
    let keys: Vec<String> = keys.map(|what| format!("{sku}:{what}")).collect();
    let mut call = redis::cmd("EVAL");
    let arguments = words(arguments);
    let (terms, rest) = arguments.split_at(3);
    call.arg(include_str!("../../src/sale.lua")).arg(keys.len()).arg(keys).arg(op);
    call.arg(terms).arg(0).arg(rest);
    type Told = (String, String, u64, u64, u64, u64, redis::Value, redis::Value);
    let told = call.query_async::<Told>(&mut redis.connection().await.unwrap()).await;
    let (outcome, held, _, _, news, ..) =
        told.unwrap_or_else(|error| panic!("{op} {arguments:?}: {error}"));
    (outcome, held, news)
}

/// Sends a request about a SKU or an order, of a user.
async fn by(server: &Server, user: &str, method: &str, path: &str) -> HttpResponse {
    server.send(server.request(method, path).header("x-user-id", user)).await
}

async fn enter(server: &Server, user: &str) -> HttpResponse {
    by(server, user, "POST", "/seckill/iphone/entries").await
}

/// Orders a piece of the draw of the iPhone.
async fn order(server: &Server, user: &str, ticket: &Value) -> HttpResponse {
    let request = server.order_request("iphone", user);
    server.send(request.header("x-seckill-ticket", ticket.as_str().unwrap_or_default())).await
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
    let orders = servers.iter().cycle().take(users).enumerate();
    let orders = orders.map(|(user, server)| {
        server.spawn(server.order_request("iphone", &format!("user-{user}")))
    });
    let mut answers = Vec::new();
    for order in orders.collect::<Vec<_>>() {
        answers.push(order.await.unwrap());
    }
    answers
}

fn count(answers: &[HttpResponse], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// Checks that a server can't be started with this Redis, and says why. Returns its logs.
fn does_not_start(redis: &Redis, flags: &str, why: &str) -> String {
    let flags = format!("--listen 127.0.0.1:0 --redis {} {flags}", redis.url());
    fails(SECKILL, &words(&flags), 1, why)
}
