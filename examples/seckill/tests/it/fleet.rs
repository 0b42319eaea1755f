//! A Redis that fails or is replaced, a restart of the servers, and more than one Redis server.

use test_support::proxy::{Fault, Proxy};
use test_support::{Cluster, MASTER, Redis, Sentinel, eventually};

use crate::{ADMIN, OPEN_DRAW, alone, by, enter, level, on_redis, order};

#[tokio::test]
async fn a_restart_keeps_stock_and_orders() {
    let redis = Redis::start().await;
    let flags = "--ip-quota off --prefix shop --stock";
    let first = on_redis(&redis, &format!("{flags} iphone=1"));
    let placed = first.order("iphone", "alice").await;
    assert_eq!(placed.status, 201);
    first.stop();

    let second = on_redis(&redis, &format!("{flags} iphone=500"));
    let level = level(&second).await;
    assert_eq!((&level["stock"], &level["sold"]), (&1.into(), &1.into()), "{level}");
    assert_eq!(second.order("iphone", "alice").await.problem(409), "/problems/already-ordered");
    second.order("iphone", "bob").await.problem(410);
    let order = by(&second, "alice", "GET", placed.header("location").unwrap()).await.json();
    assert_eq!(order["order_id"], placed.json()["order_id"]);
    let [before, now] = [&placed.json(), &order].map(|it| it["pay_in_ms"].as_u64().unwrap());
    assert!(now > 0 && now <= before, "the time to pay goes on: {before}, {now}");
    assert!(second.stop().contains("the stock was set before"));
    let mut keys: Vec<String> = redis.run(&["KEYS", "shop:{i*"]).await;
    keys.sort();
    let records = ["buyers", "draw", "held", "orders", "stock"];
    assert_eq!(keys, records.map(|record| format!("shop:{{iphone}}:{record}")));
    for key in keys {
        assert_eq!(redis.run::<i64>(&["TTL", &key]).await, -1, "{key} is a record");
    }
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
    let mut sold = 0;
    for number in 0..8 {
        let answer = servers[number % 2].order("iphone", &format!("user-{number}")).await;
        assert!([201, 410].contains(&answer.status.as_u16()), "{answer:?}");
        sold += usize::from(answer.status == 201);
    }
    assert_eq!(sold, 3);
    for number in 0..5 {
        assert_ne!(servers[number % 2].order("radio", "alice").await.status, 429);
    }
    servers[0].order("radio", "alice").await.problem(403);
    let ban = servers[1].ask("GET", "/admin/bans/alice", "").await.json();
    assert_eq!((&ban["user"], &ban["reason"]), (&"alice".into(), &"strikes".into()));
    servers[0].ask("GET", "/admin/bans/bob", "").await.problem(404);
    assert_eq!(servers[0].ask("GET", "/admin/bans", "").await.problem(501), "about:blank");
    assert_eq!(servers[1].ask("DELETE", "/admin/bans/alice", "").await.status, 204);
    let drawn = alone(&format!("{flags} --prefix drawn"));
    let entered = enter(&drawn, "alice").await.json();
    assert_eq!(order(&drawn, "alice", &entered["ticket"]).await.status, 201);
}

#[tokio::test]
async fn a_master_behind_sentinels_has_a_login() {
    let master = Redis::start().await;
    let sentinel = Sentinel::start(master.port()).await;
    sentinel.server.run::<()>(&["SENTINEL", "SET", MASTER, "auth-pass", "secret"]).await;
    master.run::<()>(&["ACL", "SETUSER", "shop", "on", ">hers", "~*", "&*", "+@all"]).await;
    master.run::<()>(&["CONFIG", "SET", "requirepass", "secret"]).await;
    for (user, login) in [("alice", ":secret"), ("bob", "shop:hers")] {
        let named = format!("--sentinel-master {login}@{MASTER} --min-replicas 0");
        let server = alone(&format!("--redis {} {named}", sentinel.server.url()));
        assert_eq!(server.order("iphone", user).await.status, 201);
    }
}
