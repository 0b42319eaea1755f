//! A rush for the stock, what reads of it cost Redis, and orders that are sent twice.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use test_support::program::Program;
use test_support::proxy::{Fault, Proxy};
use test_support::requests::HttpResponse;
use test_support::server_process::Server;
use test_support::{Redis, eventually};
use tokio::time::sleep;

use crate::{
    NO_ORDER, SECKILL, alone, by, count, does_not_start, on_redis, pay, rush, sale, words,
};

async fn look_up(server: &Server, user: &str) -> HttpResponse {
    by(server, user, "GET", &format!("/orders/{NO_ORDER}")).await
}

#[tokio::test]
async fn a_crowd_buys_no_more_than_there_is() {
    let redis = Redis::start().await;
    let flags = "--ip-quota off --stock iphone=150";
    let two = [(); 2].map(|()| on_redis(&redis, flags));
    for servers in [&two[..], &[alone(flags)]] {
        // Each of 600 users orders three times.
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.extend(rush(servers, 600).await);
        }
        assert_eq!(count(&answers, 201), 150);
        assert_eq!(count(&answers, 201) + count(&answers, 409) + count(&answers, 410), 1800);
        let sold = answers.iter().filter(|answer| answer.status == 201);
        let buyers: HashSet<_> = sold.map(|answer| answer.json()["user"].to_string()).collect();
        assert_eq!(buyers.len(), 150, "no user bought twice");
    }
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, 150);
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:buyers"]).await, 150);
}

#[tokio::test]
async fn polls_cost_redis_four_reads_a_second() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, "");
    let (before, begun) = (redis.call_count("zcard").await, Instant::now());
    for number in 0..1000 {
        assert_eq!(server.get("/seckill/iphone").await.status, 200);
        server.get(&format!("/seckill/no-{number}")).await.problem(404);
    }
    let reads = (redis.call_count("zcard").await - before) / 3;
    let bound = begun.elapsed().as_millis() as u64 / 250 + 2;
    assert!(reads <= bound, "{reads} reads in {:?}", begun.elapsed());
}

#[tokio::test]
async fn looking_up_orders_is_limited_by_user_and_address() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, "");
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(look_up(&server, "mallory").await);
    }
    assert_eq!((count(&answers, 404), count(&answers, 429)), (60, 40));
    assert_eq!(redis.call_count("zscore").await, 60, "a refused read costs Redis nothing");
    assert_eq!(server.order("iphone", "mallory").await.status, 201, "orders have their own quota");
    for number in 60..1000 {
        assert_eq!(look_up(&server, &format!("user-{number}")).await.status, 404);
    }
    let denied = look_up(&server, "one-more").await;
    denied.problem(429);
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["read-ip"]));
}

/// As where Redis evicts keys.
#[tokio::test]
async fn a_sku_without_its_stock_or_its_buyers_is_lost() {
    let redis = Redis::start().await;
    redis.run::<()>(&["SET", "{buyers}:stock", "2"]).await;
    redis.run::<()>(&["HSET", "{buyers}:orders", "1", "alice"]).await;
    for op in ["order", "pay", "enter", "entry"] {
        for sku in ["{stock}", "{buyers}"] {
            let told = sale(&redis, sku, op, "1 60000000 0 alice 1 1").await;
            assert_eq!(told.0, "lost", "{op} without {sku}");
        }
    }
}

/// Checks that a server that is started finds the stock lost.
pub(crate) fn is_lost(redis: &Redis) {
    let hint = does_not_start(redis, "", "Redis has lost the stock of iphone");
    // Otherwise a new sale would have the old opening.
    assert!(hint.contains("{iphone}:draw'; redis-cli -c DEL seckill:opening"), "{hint}");
}

/// A server that is slow to see the loss, as one is that has to reconnect first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_after_a_loss_does_not_sell_again() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, "");
    server.signal("STOP");
    redis.run::<()>(&["FLUSHALL"]).await;
    let continued = tokio::spawn(async move {
        sleep(Duration::from_millis(900)).await;
        server.signal("CONT");
        server
    });
    is_lost(&redis);
    let server = continued.await.unwrap();
    let order = server.order("iphone", "alice").await;
    for lost in [order, look_up(&server, "alice").await, server.get("/seckill/iphone").await] {
        assert_eq!(lost.problem(503), "/problems/stock-lost");
    }
    assert!(server.stop().contains("answered with 503"));
    is_lost(&redis);
}

/// Another server has sold as many pieces meanwhile as are lost: their number alone tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sees_late_that_an_order_is_lost_ends_the_sale() {
    for last in ["an order", "a payment"] {
        let mut redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        let late = alone(&format!("--stock iphone=2 --redis {}", proxy.url()));
        let mut order = late.order("iphone", "alice").await.json();
        redis.run::<()>(&["SAVE"]).await;
        match last {
            "an order" => order = late.order("iphone", "bob").await.json(),
            _ => assert_eq!(pay(&late, &order, "1").await.status, 200),
        }
        proxy.set(Fault::Cut);
        redis.restart().await;
        let new = on_redis(&redis, "--stock iphone=2");
        let placed = new.order("iphone", "carol").await;
        assert_eq!(placed.status, 201, "{order}");
        proxy.set(Fault::None);
        for server in [late, new] {
            let is_seen = async || server.get("/readyz").await.body.contains("Redis has lost");
            eventually(last, is_seen).await;
            // Where the order is there and its payment is not, whoever pays for it now would pay twice.
            assert_eq!(pay(&server, &order, "2").await.problem(503), "/problems/stock-lost");
        }
        is_lost(&redis);
    }
}

#[test]
fn a_sale_under_robots_is_simulated() {
    let flags = format!(
        "--server {SECKILL} --honest 40 --bots 2 --accounts 5 --stock 10 --nat-share 20 -- \
         --ip-quota 3/60s --turn 8s"
    );
    let (_, lines, logs) = Program::fed(env!("CARGO_BIN_EXE_simulate"), &words(&flags), "");
    let [row] = &lines[..] else { panic!("{lines:?}: {logs}") };
    let row: Vec<_> = row.split('|').map(str::trim).collect();
    // Three accounts of each bot, and three of the five customers behind each address of the carrier.
    assert_eq!(row[1..7], ["draw", "one-shot", "20", "20 %", "10", "15.8 %"], "{row:?}");
    assert_eq!(row[8..11], ["8", "3", "0"], "{row:?}");
}
