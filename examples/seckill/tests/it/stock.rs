//! What reads of the stock and of orders cost Redis, and what an order costs after the sale.

use std::time::Instant;

use test_support::server_process::{HttpResponse, Server};
use test_support::{Redis, eventually};

use crate::{count, on_both, on_redis, responses};

/// Returns how many reads of the stock a server makes in the time since then.
fn four_a_second(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64 / 250 + 2
}

/// Polls these paths at once.
async fn poll(server: &Server, paths: impl Iterator<Item = String>) -> Vec<HttpResponse> {
    responses(paths.map(|path| server.spawn(server.request("GET", &path)))).await
}

#[tokio::test]
async fn polls_cost_redis_a_bounded_number_of_reads() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &[]);
    let (before, begun) = (redis.call_count("hlen").await, Instant::now());
    for _ in 0..20 {
        let answers = poll(&server, (0..50).map(|_| "/seckill/iphone".to_owned())).await;
        assert_eq!(count(&answers, 200), 50);
    }
    let reads = redis.call_count("hlen").await - before;
    assert!(reads <= four_a_second(begun), "{reads} reads in {:?}", begun.elapsed());

    let (before, begun) = (redis.call_count("hlen").await, Instant::now());
    let answers = poll(&server, (0..400).map(|number| format!("/seckill/no-{number}"))).await;
    // Beyond the bound the server does not know, and says so.
    assert!(count(&answers, 404) >= 1, "{answers:?}");
    assert_eq!(count(&answers, 404) + count(&answers, 503), 400);
    assert_eq!(server.get("/seckill/iphone").await.status, 200, "what is on sale is read");
    let reads = redis.call_count("hlen").await - before;
    // Any ten in a second make twenty in a second and an instant.
    let bound = 20 * (begun.elapsed().as_secs() + 1) + four_a_second(begun);
    assert!(reads <= bound, "{reads} reads in {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_sku_of_another_server_is_found() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &[]);
    server.get("/seckill/radio").await.problem(404);
    let _other = on_redis(&redis, &["--stock", "radio=7"]);
    assert_eq!(server.get("/seckill/radio").await.status, 200);
    assert_eq!(server.order("radio", "alice").await.status, 201);
}

/// Looks up an order that does not exist.
async fn look_up(server: &Server, user: &str) -> HttpResponse {
    let order = "/orders/iphone.00000000-0000-4000-8000-000000000000";
    server.send(server.request("GET", order).header("x-user-id", user)).await
}

#[tokio::test]
async fn looking_up_orders_is_limited_by_user_and_address() {
    let (redis, begun) = (Redis::start().await, Instant::now());
    let server = on_redis(&redis, &[]);
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(look_up(&server, "mallory").await);
    }
    assert_eq!((count(&answers, 404), count(&answers, 429)), (60, 40));
    // A look at the policies is one call a second too.
    let (reads, looks) = (redis.call_count("hget").await, begun.elapsed().as_secs() + 2);
    assert!((60..=60 + looks).contains(&reads), "a refused read costs Redis nothing: {reads}");
    assert_eq!(server.order("iphone", "mallory").await.status, 201, "orders have their own quota");
    on_both(&["--read-quota", "2/60s", "--read-ip-quota", "5/60s"], async |server| {
        for user in ["a", "a", "b", "b", "c"] {
            assert_eq!(look_up(server, user).await.status, 404, "{user}");
        }
        let denied = look_up(server, "d").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["read-ip"]));
    })
    .await;
}

/// Orders for ever more users until an order costs Redis no script.
async fn until_memory_responds(redis: &Redis, server: &Server) {
    let number = std::cell::Cell::new(0);
    eventually("orders are refused from memory", async || {
        number.set(number.get() + 1);
        let before = redis.call_count("evalsha").await;
        server.order("iphone", &format!("late-{}", number.get())).await.problem(410);
        redis.call_count("evalsha").await == before
    })
    .await;
}

#[tokio::test]
async fn a_sold_out_sku_costs_redis_no_order() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &["--stock", "iphone=2", "--ip-quota", "off"]);
    let placed = server.order("iphone", "alice").await;
    assert_eq!(server.order("iphone", "bob").await.status, 201);
    until_memory_responds(&redis, &server).await;
    let scripts = redis.call_count("evalsha").await;
    for number in 0..50 {
        let answer = server.order("iphone", &format!("user-{number}")).await;
        assert_eq!(answer.problem(410), "/problems/sold-out");
    }
    assert_eq!(redis.call_count("evalsha").await, scripts, "no script for an order");
    let again = server.order("iphone", "alice").await;
    assert_eq!(again.problem(409), "/problems/already-ordered");
    assert_eq!(again.json()["order_id"], placed.json()["order_id"]);
}

#[tokio::test]
async fn a_stock_that_the_operator_raises_is_sold() {
    let redis = Redis::start().await;
    let server =
        on_redis(&redis, &["--stock", "iphone=1", "--ip-quota", "off", "--quota", "999/1s"]);
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    until_memory_responds(&redis, &server).await;
    redis.run::<()>(&["SET", "seckill:{iphone}:stock", "2"]).await;
    let is_sold = async || server.order("iphone", "bob").await.status == 201;
    eventually("the raised stock is sold", is_sold).await;
    server.order("iphone", "carol").await.problem(410);
    // A sale that is set up anew knows none of the old orders.
    redis.run::<()>(&["DEL", "seckill:{iphone}:orders", "seckill:{iphone}:buyers"]).await;
    let is_sold = async || server.order("iphone", "alice").await.status == 201;
    eventually("a new sale sells to an old buyer", is_sold).await;
}

#[tokio::test]
async fn a_sku_without_its_orders_is_not_sold_again() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &["--stock", "iphone=2"]);
    for lost in ["orders", "buyers"] {
        redis.run::<()>(&["DEL", "seckill:{iphone}:orders", "seckill:{iphone}:buyers"]).await;
        assert_eq!(server.order("iphone", "alice").await.status, 201, "{lost}");
        // As a Redis that evicts keys does.
        redis.run::<()>(&["DEL", &format!("seckill:{{iphone}}:{lost}")]).await;
        assert_eq!(server.order("iphone", "bob").await.problem(503), "/problems/stock-lost");
    }
}

#[tokio::test]
async fn an_order_sent_twice_is_one_order() {
    let redis = Redis::start().await;
    let script = include_str!("../../src/place_order.lua");
    redis.run::<()>(&["SET", "{x}:stock", "2"]).await;
    let place = async |user: &str, order: &str| {
        let keys = ["EVAL", script, "3", "{x}:stock", "{x}:buyers", "{x}:orders"];
        redis.run::<(i64, String)>(&[&keys[..], &[user, order]].concat()).await
    };
    assert_eq!(place("alice", "1").await, (1, "1".to_owned()));
    assert_eq!(place("alice", "1").await, (1, "1".to_owned()), "the reply had been lost");
    assert_eq!(place("alice", "2").await, (0, "1".to_owned()));
    assert_eq!(redis.run::<usize>(&["HLEN", "{x}:orders"]).await, 1);
    assert_eq!(place("bob", "3").await, (1, "3".to_owned()));
    assert_eq!(place("carol", "4").await, (-1, String::new()));
    assert_eq!(place("bob", "3").await, (1, "3".to_owned()), "also when sold out since");
}
