//! What several seckill servers promise together, and what outlives them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::collections::HashSet;

use test_support::Redis;
use test_support::server_process::{Answer, Server};

/// Starts a server without a quota for the one address that all users come from here.
fn start(redis: &Redis, flags: &[&str]) -> Server {
    let url = redis.url();
    let always = ["--redis", &url, "--response-timeout", "10s", "--ip-quota", "off"];
    Server::start("seckill", &[&always, flags].concat())
}

/// Sends the orders of all these users to both servers in turn, at once.
async fn rush(servers: &[Server; 2], users: impl Iterator<Item = String>) -> Vec<Answer> {
    let orders: Vec<_> = users
        .enumerate()
        .map(|(index, user)| {
            let server = &servers[index % 2];
            server.spawn(server.order_request("iphone", &user))
        })
        .collect();
    let mut answers = Vec::new();
    for order in orders {
        answers.push(order.await.unwrap());
    }
    answers
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

#[tokio::test]
async fn two_servers_admit_five_of_a_users_thousand_requests() {
    let redis = Redis::start().await;
    let servers = [(); 2].map(|()| start(&redis, &[]));
    let answers = rush(&servers, (0..1000).map(|_| "alice".to_owned())).await;
    let counts = [201, 409, 429].map(|status| count(&answers, status));
    assert_eq!(counts, [1, 4, 995]);
    assert_eq!(redis.run::<usize>(&["ZCARD", "seckill:{=alice}:user"]).await, 5);
}

#[tokio::test]
async fn two_servers_never_oversell_and_sell_to_each_user_once() {
    let redis = Redis::start().await;
    let servers = [(); 2].map(|()| start(&redis, &["--stock", "iphone=150"]));
    // Everybody orders three times, of both servers: 300 users after 150 pieces.
    let users = (0..900).map(|index| format!("user-{}", index % 300));
    let answers = rush(&servers, users).await;
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
async fn a_restart_neither_refills_the_stock_nor_forgets_an_order() {
    let redis = Redis::start().await;
    let first = start(&redis, &["--prefix", "shop", "--stock", "iphone=1"]);
    let placed = first.order("iphone", "alice").await;
    assert_eq!(placed.status, 201);
    first.signal("TERM");
    assert!(first.stopped().0.success());

    let second = start(&redis, &["--prefix", "shop", "--stock", "iphone=500"]);
    let level = second.get("/seckill/iphone").await.json();
    assert_eq!((&level["stock"], &level["sold"]), (&1.into(), &1.into()), "{level}");
    assert_eq!(second.order("iphone", "alice").await.problem(409), "/problems/already-ordered");
    second.order("iphone", "bob").await.problem(410);
    assert_eq!(second.get(placed.header("location")).await.json(), placed.json());
    second.signal("TERM");
    let (_, logs, _) = second.stopped();
    assert!(logs.contains("WARN") && logs.contains("iphone"), "{logs}");

    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    let records = ["shop:{iphone}:buyers", "shop:{iphone}:orders", "shop:{iphone}:stock"];
    let windows = ["shop:{=alice}:user", "shop:{=bob}:user"];
    assert_eq!(keys, [&windows[..], &records[..]].concat());
    for key in records {
        assert_eq!(redis.run::<i64>(&["TTL", key]).await, -1, "{key} is a record");
    }
    for key in windows {
        assert!((1..=61).contains(&redis.run::<i64>(&["TTL", key]).await), "{key} is a window");
    }
}

#[tokio::test]
async fn an_order_sent_twice_is_one_order() {
    let redis = Redis::start().await;
    let script = include_str!("../examples/seckill/place_order.lua");
    redis.run::<()>(&["SET", "{x}:stock", "2"]).await;
    let place = async |user: &str, order: &str| {
        let keys = ["EVAL", script, "3", "{x}:stock", "{x}:buyers", "{x}:orders"];
        redis.run::<(i64, String)>(&[&keys[..], &[user, order]].concat()).await
    };
    assert_eq!(place("alice", "1").await, (1, "1".to_owned()));
    assert_eq!(place("alice", "1").await, (1, "1".to_owned()), "the answer had been lost");
    assert_eq!(place("alice", "2").await, (0, "1".to_owned()));
    assert_eq!(redis.run::<usize>(&["HLEN", "{x}:orders"]).await, 1);
    assert_eq!(place("bob", "3").await, (1, "3".to_owned()));
    assert_eq!(place("carol", "4").await, (-1, String::new()));
    assert_eq!(place("bob", "3").await, (1, "3".to_owned()), "also when sold out since");
}

#[tokio::test]
async fn without_its_redis_a_server_says_when_to_come_back() {
    let redis = Redis::start().await;
    let server = start(&redis, &[]);
    let placed = server.order("iphone", "alice").await;
    drop(redis);

    for _ in 0..3 {
        let order = server.order("iphone", "alice").await;
        assert!(order.problem(503).ends_with("#temporary-reduced-capacity"));
        order.retry_after();
    }
    for path in ["/seckill/iphone", placed.header("location")] {
        let answer = server.get(path).await;
        assert!(answer.problem(503).ends_with("#temporary-reduced-capacity"));
        answer.retry_after();
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success() && !logs.contains("alice"), "{logs}");
}
