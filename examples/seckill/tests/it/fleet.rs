//! Several servers, a Redis that fails, and more than one Redis server.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use test_support::server_process::{HttpResponse, Server, run};
use test_support::{Cluster, MASTER, Redis, Sentinels, eventually};
use tokio::time::sleep;

use crate::{SECKILL, alone, count, on_redis, responses, stop, ttl};

/// Sends the orders of all these users to both servers in turn, at once.
async fn rush(servers: &[Server; 2], users: impl Iterator<Item = String>) -> Vec<HttpResponse> {
    let orders = users
        .zip(servers.iter().cycle())
        .map(|(user, server)| server.spawn(server.order_request("iphone", &user)));
    responses(orders.collect::<Vec<_>>()).await
}

#[tokio::test]
async fn two_servers_admit_five_of_a_thousand() {
    let redis = Redis::start().await;
    let servers = [(); 2].map(|()| on_redis(&redis, &["--ip-quota", "off"]));
    let answers = rush(&servers, (0..1000).map(|_| "alice".to_owned())).await;
    let counts = [201, 409, 429].map(|status| count(&answers, status));
    assert_eq!(counts, [1, 4, 995]);
    assert_eq!(redis.run::<usize>(&["ZCARD", "seckill:{=alice}:user:60s"]).await, 5);
}

#[tokio::test]
async fn two_servers_never_oversell() {
    let redis = Redis::start().await;
    let flags = ["--ip-quota", "off", "--stock", "iphone=150"];
    let servers = [(); 2].map(|()| on_redis(&redis, &flags));
    // Each of 300 users orders three times, of both servers.
    let answers = rush(&servers, (0..900).map(|index| format!("user-{}", index % 300))).await;
    assert_eq!(count(&answers, 201), 150);
    assert_eq!(count(&answers, 201) + count(&answers, 409) + count(&answers, 410), 900);
    let sold = answers.iter().filter(|answer| answer.status == 201);
    let buyers: HashSet<_> = sold.map(|answer| answer.json()["user"].to_string()).collect();
    assert_eq!(buyers.len(), 150, "no user bought twice");
    for server in &servers {
        let level = server.get("/seckill/iphone").await.json();
        assert_eq!((&level["sold"], &level["remaining"]), (&150.into(), &0.into()));
    }
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, 150);
}

#[tokio::test]
async fn a_restart_keeps_stock_and_orders() {
    let redis = Redis::start().await;
    let flags = ["--ip-quota", "off", "--prefix", "shop", "--stock"];
    let first = on_redis(&redis, &[&flags[..], &["iphone=1"]].concat());
    let placed = first.order("iphone", "alice").await;
    assert_eq!(placed.status, 201);
    stop(first);

    let second = on_redis(&redis, &[&flags[..], &["iphone=500"]].concat());
    let level = second.get("/seckill/iphone").await.json();
    assert_eq!((&level["stock"], &level["sold"]), (&1.into(), &1.into()), "{level}");
    assert_eq!(second.order("iphone", "alice").await.problem(409), "/problems/already-ordered");
    second.order("iphone", "bob").await.problem(410);
    let order = second.request("GET", placed.header("location")).header("x-user-id", "alice");
    assert_eq!(second.send(order).await.json(), placed.json());
    let logs = stop(second);
    assert!(logs.contains("WARN") && logs.contains("iphone"), "{logs}");

    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    let records = ["shop:{iphone}:buyers", "shop:{iphone}:orders", "shop:{iphone}:stock"];
    let logs = ["shop:{=alice}:user:60s", "shop:{=bob}:user:60s"];
    assert_eq!(
        keys,
        [&["shop:mark", "shop:policies:configured"], &logs[..], &records[..]].concat()
    );
    for key in records {
        assert_eq!(ttl(&redis, key.as_bytes()).await, -1, "{key} is a record");
    }
    for key in logs {
        assert!((1..=61).contains(&ttl(&redis, key.as_bytes()).await), "{key} is a log");
    }
}

#[tokio::test]
async fn what_was_flushed_is_not_sold_again() {
    let redis = Redis::start().await;
    let flags = ["--stock", "iphone=2", "--ip-quota", "off"];
    let running = on_redis(&redis, &flags);
    for user in ["alice", "bob"] {
        assert_eq!(running.order("iphone", user).await.status, 201);
    }
    redis.run::<()>(&["FLUSHALL"]).await;
    let url = redis.url();
    let start = [&flags[..], &["--listen", "127.0.0.1:0", "--redis", &url]].concat();
    let is_refused = || {
        let output = run(SECKILL, &start);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("iphone") && stderr.contains("--new-sale"), "{stderr}");
    };
    is_refused();
    assert_eq!(running.order("iphone", "carol").await.problem(503), "/problems/stock-lost");
    let lookup = running.request("GET", "/orders/iphone.00000000-0000-4000-8000-000000000000");
    let lookup = running.send(lookup.header("x-user-id", "alice")).await;
    assert_eq!(lookup.problem(503), "/problems/stock-lost");
    stop(running);
    is_refused();

    let new_sale = on_redis(&redis, &[&flags[..], &["--new-sale"]].concat());
    assert_eq!(new_sale.order("iphone", "carol").await.status, 201);
    stop(new_sale);
    // A sale that stands is kept, also with the flag.
    let again = on_redis(&redis, &[&flags[..], &["--new-sale"]].concat());
    again.order("iphone", "carol").await.problem(409);
    assert_eq!(again.get("/seckill/iphone").await.json()["remaining"], 1);
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

#[tokio::test]
async fn a_dead_redis_is_a_503_until_it_is_back() {
    let mut redis = Redis::start().await;
    let server = alone(&["--redis", &redis.url(), "--quota", "9/60s"]);
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    redis.kill();
    for path in ["", "/seckill/iphone", "/orders/iphone.00000000-0000-4000-8000-000000000000"] {
        let asked = Instant::now();
        let answer = match path {
            "" => server.order("iphone", "bob").await,
            path => server.send(server.request("GET", path).header("x-user-id", "bob")).await,
        };
        assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"));
        answer.retry_after();
        assert!(asked.elapsed() < Duration::from_secs(2), "{path:?} took {:?}", asked.elapsed());
    }
    assert_eq!(server.get("/healthz").await.status, 200);

    redis.start_again();
    redis.ready().await;
    let back = Instant::now();
    let is_found = async || server.get("/seckill/android").await.status == 404;
    eventually("it is found", is_found).await;
    assert!(back.elapsed() < Duration::from_secs(10), "the server does not find it");
    // The new Redis is empty. It is an accident, and nothing to tell a customer as a fact.
    let is_lost =
        async || server.get("/seckill/iphone").await.problem(503) == "/problems/stock-lost";
    eventually("a read after the outage", is_lost).await;
    assert_eq!(server.order("iphone", "carol").await.problem(503), "/problems/stock-lost");
    let stock = async || redis.run::<Option<String>>(&["GET", "seckill:{iphone}:stock"]).await;
    let is_marked = async || stock().await.as_deref() == Some("lost");
    eventually("it is marked for servers that are started", is_marked).await;
    redis.run::<()>(&["SET", "seckill:{iphone}:stock", "1"]).await;
    assert_eq!(server.order("iphone", "carol").await.status, 201, "an operator has set it");
    let logs = stop(server);
    assert!(logs.contains("ERROR") && logs.contains("LOST THE STOCK"), "{logs}");
    assert!(!logs.contains("alice") && !logs.contains("bob"), "{logs}");
}

#[tokio::test]
async fn on_a_cluster_quota_and_stock_hold() {
    let cluster = Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let mut flags = vec!["--stock", "iphone=3", "--stock", "radio=9", "--ip-quota", "1000/60s"];
    // None of its servers has a replica.
    flags.extend(["--response-timeout", "10s", "--min-replicas", "0"]);
    // One server of the Cluster tells the time.
    flags.extend(["--opens-at", "2020-01-01T00:00:00Z"]);
    urls.iter().for_each(|url| flags.extend(["--redis", url]));
    let servers = [alone(&flags), alone(&flags)];
    let mut sold = 0;
    for number in 0..8 {
        let answer = servers[number % 2].order("iphone", &format!("user-{number}")).await;
        assert!([201, 410, 409].contains(&answer.status.as_u16()), "{answer:?}");
        sold += usize::from(answer.status == 201);
    }
    assert_eq!(sold, 3);
    // An order of a SKU that is sold out may be refused in front of the limit.
    for number in 0..4 {
        assert_ne!(servers[number % 2].order("radio", "user-0").await.status, 429);
    }
    let answer = servers[0].order("radio", "user-0").await;
    assert_eq!(answer.status, 429, "the sixth of one user, whichever server");
    assert!(answer.retry_after() <= 60);
}

#[tokio::test]
async fn sentinels_name_the_next_master() {
    let mut watched = Sentinels::with_replicas(2).await;
    let urls = watched.urls().join(",");
    let flags = ["--stock", "iphone=100", "--redis", &urls, "--sentinel-master", MASTER];
    let server = alone(&[&flags[..], &["--response-timeout", "10s"]].concat());
    assert_eq!(server.order("iphone", "alice").await.status, 201);

    watched.master.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        let answer = server.order("iphone", &format!("user-{number}")).await;
        // Without a master there is no stock; the quotas still hold.
        assert!([201, 503].contains(&answer.status.as_u16()), "{answer:?}");
        if answer.status == 201 {
            break;
        }
        assert!(Instant::now() < deadline, "no order after the failover");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.order("iphone", "alice").await.status, 409, "the order was replicated");
}
