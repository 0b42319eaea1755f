//! What stops a sale: the balancer and the operator are told, with what to do.

use crate::*;

const TWO: &str = "--stock iphone=2 --stock ipad=3";

/// Waits until `/readyz` and the live page give a reason that has these texts, and returns it. A balancer needs a server
/// that sells another SKU.
async fn stands_still(server: &Server, texts: &[&str]) -> HttpResponse {
    let has = |text: &str| texts.iter().all(|it| text.contains(it));
    eventually(texts[0], async || has(&server.get("/readyz").await.body)).await;
    let ready = server.get("/readyz").await;
    match texts[0].starts_with("No ") {
        true => assert_eq!(ready.status, 200),
        false => assert_eq!(ready.problem(503), "/problems/not-ready"),
    }
    let live = live(server).await;
    assert!(has(&live["standstill"].to_string()), "{live}");
    ready
}

async fn goes_on(server: &Server) {
    let is_ready = async || server.get("/readyz").await.body == "ready";
    eventually("all is sold", is_ready).await;
    let live = live(server).await;
    assert!(live["standstill"].is_null(), "{live}");
}

#[tokio::test]
async fn a_sale_that_stands_still_says_why() {
    let redis = Redis::start().await;
    let flags = format!("{ADMIN} {TWO} --opens-in 1h --response-timeout 2s");
    let server = alone(&format!("--redis {} {flags}", redis.url()));
    goes_on(&server).await;
    redis.signal("STOP");
    stands_still(&server, &["Nothing is sold: the stock can't be read", "Is Redis up"]).await;
    redis.signal("CONT");
    goes_on(&server).await;

    let no_writes = "Nothing is sold: the stock can't be read or changed";
    for key in ["maxmemory", "min-replicas-to-write"] {
        redis.command(&format!("CONFIG SET {key} 1")).await;
        stands_still(&server, &[no_writes, "writes"]).await;
        assert_eq!(server.get("/seckill/iphone").await.status, 200, "reads go on");
        let ban = r#"{"for": "1h", "reason": "bot"}"#;
        let refused = server.ask("PUT", "/admin/bans/mallory", ban).await;
        assert!(refused.status == 503 && refused.body.contains("may have made it"));
        redis.command(&format!("CONFIG SET {key} 0")).await;
        goes_on(&server).await;
    }
    for right in ["hset", "hdel", "zadd", "zrem", "zpopmin"] {
        redis.command(&format!("ACL SETUSER default -{right}")).await;
        stands_still(&server, &[no_writes]).await;
        redis.command(&format!("ACL SETUSER default +{right}")).await;
        goes_on(&server).await;
    }
    redis.command("SET seckill:{iphone}:stock many").await;
    let lost = ["No iphone is sold: Redis has lost", "'seckill:{iphone}:stock'"];
    let hint = stands_still(&server, &lost).await.body;
    assert!(!hint.contains("DEL seckill:opening"), "it would close the draw of the other: {hint}");
    let stock = &live(&server).await["stock"];
    assert_eq!((&stock[0]["level"], &stock[1]["level"]["stock"]), (&json!(null), &json!(3)));
    redis.command("FLUSHALL").await;
    stands_still(&server, &["Nothing is sold: Redis has lost the stock of iphone"]).await;
}

/// Although another waits for replicas, after which it goes on by itself.
#[tokio::test]
async fn a_lost_stock_is_told_first() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &format!("{ADMIN} {TWO} --min-replicas 1"));
    stands_still(&server, &["Nothing is sold", "0 of 1 replicas"]).await;
    redis.command("SET seckill:{ipad}:stock many").await;
    stands_still(&server, &["Redis has lost the stock of ipad", "'seckill:{ipad}:stock'"]).await;
}

/// What the runbook and the live page say to do, on one server and on any node of a Cluster.
#[tokio::test]
async fn a_lost_stock_is_set_anew_as_the_hint_says() {
    let (redis, cluster) = (Redis::start().await, Cluster::start().await);
    let refunds = "shop:{iphone}:refunds";
    for (nodes, owner) in
        [(std::slice::from_ref(&redis), &redis), (&cluster.nodes, cluster.node_of(refunds))]
    {
        let urls: Vec<_> = nodes.iter().map(Redis::url).collect();
        let sale = format!("{ADMIN} {TWO} --stock tv=4 --opens-in 1h --prefix shop");
        let flags = format!("{sale} --redis {} --min-replicas 0", urls.join(","));
        let server = alone(&flags);
        for node in nodes {
            node.command("FLUSHALL").await;
        }
        owner.run::<()>(&["HSET", refunds, "a payment", "an order"]).await;
        let hints = ["lost the stock of iphone, ipad, tv", "Stop all servers", "DEL shop:opening"];
        let hint =
            stands_still(&server, &hints).await.json()["detail"].as_str().unwrap().to_owned();
        let command = hint.split('`').nth(1).unwrap();
        // A server that is started now says the same.
        let refused = fails(SECKILL, &words(&flags), 1, hints[0]);
        assert!(refused.contains(command), "{refused}");
        let command = command.replace("redis-cli", &format!("redis-cli -p {}", nodes[0].port()));
        server.stop();
        let done = std::process::Command::new("sh").args(["-c", &command]).status().unwrap();
        assert!(done.success(), "{command}");
        assert_eq!(owner.run::<usize>(&["HLEN", refunds]).await, 1, "they are owed");
        goes_on(&alone(&flags)).await;
    }
}
