//! A stock that is never oversold: in a rush, over restarts, behind a Redis that fails, is replaced or loses it, and on more
//! than one Redis server.

use std::collections::HashSet;

use test_support::Sentinel;
use test_support::program::Program;

use crate::*;

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
    for record in ["orders", "buyers"] {
        let key = format!("seckill:{{iphone}}:{record}");
        assert_eq!(redis.run::<usize>(&["HLEN", &key]).await, 150);
    }
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
async fn looking_up_orders_is_limited_by_user() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, "");
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(look_up(&server, "mallory").await);
    }
    assert_eq!((count(&answers, 404), count(&answers, 429)), (60, 40));
    assert_eq!(redis.call_count("zscore").await, 60, "a refused read costs Redis nothing");
    assert_eq!(server.order("iphone", "mallory").await.status, 201, "orders have their own quota");
}

/// A server that is slow to see the loss, as one is that has to reconnect first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_after_a_loss_does_not_sell_again() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, "");
    server.signal("STOP");
    redis.command("FLUSHALL").await;
    let continued = tokio::spawn(async move {
        sleep(Duration::from_millis(900)).await;
        server.signal("CONT");
        server
    });
    stock_is_lost(&redis);
    let server = continued.await.unwrap();
    let order = server.order("iphone", "alice").await;
    for lost in [order, look_up(&server, "alice").await, server.get("/seckill/iphone").await] {
        assert_eq!(lost.problem(503), "/problems/stock-lost");
    }
    assert!(server.stop().contains("answered with 503"));
    stock_is_lost(&redis);
}

/// Another server has sold as many pieces meanwhile as are lost: their number alone tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sees_late_that_an_order_is_lost_ends_the_sale() {
    for last in ["an order", "a payment"] {
        let mut redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        let late = alone(&format!("--stock iphone=2 --redis {}", proxy.url()));
        let mut order = late.order("iphone", "alice").await.json();
        redis.command("SAVE").await;
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
        stock_is_lost(&redis);
    }
}

#[tokio::test]
async fn a_restart_keeps_stock_and_orders() {
    let redis = Redis::start().await;
    let flags = "--ip-quota off --prefix shop --stock";
    let first = on_redis(&redis, &format!("{flags} iphone=1"));
    let placed = first.order("iphone", "alice").await;
    assert_eq!(placed.status, 201);
    first.stop();

    let second = on_redis(&redis, &format!("{flags} iphone=500"));
    shows(&level(&second).await, json!({ "stock": 1, "sold": 1 }));
    assert_eq!(second.order("iphone", "alice").await.problem(409), "/problems/already-ordered");
    second.order("iphone", "bob").await.problem(410);
    let order = by(&second, "alice", "GET", placed.header("location").unwrap()).await.json();
    assert_eq!(order["order_id"], placed.json()["order_id"]);
    let [before, now] = [&placed.json(), &order].map(|it| number(&it["pay_in_ms"]));
    assert!(now > 0 && now <= before, "the time to pay goes on: {before}, {now}");
    assert!(second.stop().contains("the stock was set before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_reply_is_lost_is_placed_once() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let url = proxy.url();
    let server = alone(&format!("--stock iphone=1 --redis {url} --response-timeout 10s"));
    // The piece is the last one, so that the order is repeated when all are sold. To the order, and not to a look.
    proxy.drop_replies_to("\r\norder\r\n", 1);
    let placed = server.order("iphone", "alice").await;
    assert_eq!((placed.status.as_u16(), proxy.dropped()), (201, 1), "{placed:?}");
    let again = server.order("iphone", "alice").await;
    assert_eq!(again.problem(409), "/problems/already-ordered");
    assert_eq!(again.json()["order_id"], placed.json()["order_id"]);
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_that_cannot_be_read_is_shown_until_it_is_stale() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let server = alone(&format!("--redis {}", proxy.url()));
    let status = async |path: &str| server.get(path).await.status.as_u16();
    proxy.set(Fault::Stall);
    let is_shown =
        async || (status("/readyz").await, status("/seckill/iphone").await) == (503, 200);
    eventually("a look fails, and the level is shown", is_shown).await;
    eventually("it is stale", async || status("/seckill/iphone").await == 503).await;
    let order = server.order("iphone", "alice").await;
    assert!(order.problem(503).ends_with("#temporary-reduced-capacity"), "{order:?}");
    assert!(order.retry_after() >= Some(5), "{order:?}");
    assert_eq!(status("/healthz").await, 200);
}

#[tokio::test]
async fn on_a_cluster_quota_and_stock_hold() {
    let cluster = Cluster::start().await;
    // None of its servers has a replica, and one of them tells the time.
    let flags = format!(
        "{ADMIN} --stock iphone=3 --stock radio=9 --ban 1/1h:1h --response-timeout 10s \
         --min-replicas 0 {OPEN_DRAW} --redis {}",
        cluster.urls().join(" --redis ")
    );
    let servers = [(); 2].map(|()| alone(&format!("{flags} --first-come")));
    let mut answers = Vec::new();
    for number in 0..8 {
        answers.push(servers[number % 2].order("iphone", &format!("user-{number}")).await);
    }
    assert_eq!((count(&answers, 201), count(&answers, 410)), (3, 5), "{answers:?}");
    for number in 0..5 {
        assert_ne!(servers[number % 2].order("radio", "alice").await.status, 429);
    }
    servers[0].order("radio", "alice").await.problem(403);
    let ban = servers[1].ask("GET", "/admin/bans/alice", "").await.json();
    shows(&ban, json!({ "user": "alice", "reason": "strikes" }));
    servers[0].ask("GET", "/admin/bans/bob", "").await.problem(404);
    assert_eq!(servers[0].ask("GET", "/admin/bans", "").await.problem(501), "about:blank");
    assert_eq!(servers[1].ask("DELETE", "/admin/bans/alice", "").await.status, 204);
    let drawn = alone(&format!("{flags} --prefix drawn"));
    assert_eq!(order_at_turn(&drawn, "alice").await.status, 201);
}

#[tokio::test]
async fn a_master_behind_sentinels_has_a_login() {
    let master = Redis::start().await;
    let sentinel = Sentinel::start(master.port()).await;
    sentinel.server.run::<()>(&["SENTINEL", "SET", MASTER, "auth-pass", "secret"]).await;
    master.command("ACL SETUSER shop on >hers ~* &* +@all").await;
    master.command("CONFIG SET requirepass secret").await;
    for (user, login) in [("alice", ":secret"), ("bob", "shop:hers")] {
        let named = format!("--sentinel-master {login}@{MASTER} --min-replicas 0");
        let server = alone(&format!("--redis {} {named}", sentinel.server.url()));
        assert_eq!(server.order("iphone", user).await.status, 201);
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
