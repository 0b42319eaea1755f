//! What the flash-sale server promises, as its clients and its operator see it.

mod admin;
mod draw;
mod fleet;
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
use test_support::server_process::{ADMIN, Server, TOKEN, fails};
use test_support::{Redis, eventually};

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");

/// Starts a server that keeps everything itself.
fn alone(flags: &[&str]) -> Server {
    Server::start(SECKILL, flags)
}

/// Starts a server that waits for Redis as long as a busy machine may need.
fn on_redis(redis: &Redis, flags: &[&str]) -> Server {
    alone(&[flags, &["--redis", &redis.url(), "--response-timeout", "10s"]].concat())
}

/// Holds two servers to a promise at the same time: one that keeps everything itself, and one that has a Redis and no
/// more rights there than SECURITY.md gives it.
async fn on_both(flags: &[&str], promise: impl AsyncFn(&Server)) {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::RunThePrograms).await;
    let on_redis = ["--redis", &url, "--prefix", "limiter", "--response-timeout", "10s"];
    let (limited, alone) = (alone(&[flags, &on_redis].concat()), alone(flags));
    tokio::join!(promise(&alone), promise(&limited));
    nothing_was_refused(&redis).await;
}

/// Calls the script of the stock as a server does that was told of no history, from ARGV[2] on with these
/// arguments. Returns what came of it, the user's order, and REPLY[5].
async fn sale(redis: &Redis, sku: &str, op: &str, arguments: &[&str]) -> (String, String, u64) {
    let keys =
        "stock buyers orders line turns unpaid paid returned refunds payments draw".split(' ');
    let keys: Vec<String> = keys.map(|what| format!("{sku}:{what}")).collect();
    let mut call = redis::cmd("EVAL");
    let (terms, rest) = arguments.split_at(3);
    call.arg(include_str!("../../src/sale.lua")).arg(11).arg(keys).arg(op);
    call.arg(terms).arg(0).arg(rest);
    type Told = (String, String, u64, u64, u64, u64, Vec<u32>, String);
    let told = call.query_async::<Told>(&mut redis.connection().await.unwrap()).await;
    let (outcome, held, _, _, news, ..) =
        told.unwrap_or_else(|error| panic!("{op} {arguments:?}: {error}"));
    (outcome, held, news)
}

/// Returns a request about a SKU or an order, of a user.
async fn by(server: &Server, user: &str, method: &str, path: &str) -> HttpResponse {
    server.send(server.request(method, path).header("x-user-id", user)).await
}

/// Orders a piece of the draw of the iPhone.
async fn order(server: &Server, user: &str, ticket: &Value) -> HttpResponse {
    let request = server.order_request("iphone", user);
    server.send(request.header("x-seckill-ticket", ticket.as_str().unwrap_or_default())).await
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
    let mut orders = Vec::new();
    for (user, server) in servers.iter().cycle().enumerate().take(users) {
        orders.push(server.spawn(server.order_request("iphone", &format!("user-{user}"))));
    }
    let mut answers = Vec::new();
    for order in orders {
        answers.push(order.await.unwrap());
    }
    answers
}

fn count(answers: &[HttpResponse], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// Checks that a server can't be started with this Redis, and says why. Returns its logs.
fn does_not_start(redis: &Redis, flags: &[&str], why: &str) -> String {
    let at = ["--listen", "127.0.0.1:0", "--redis", &redis.url()];
    fails(SECKILL, &[&at[..], flags].concat(), 1, why)
}
