//! What the seckill example promises over HTTP, whether its state is in process or in Redis.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::time::{Duration, Instant};

use http::HeaderValue;
use test_support::Redis;
use test_support::server_process::{Answer, Server};

/// Holds two servers to a promise: one that keeps everything itself and one that has a Redis.
async fn on_both(arguments: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&Server::start("seckill", arguments)).await;
    let redis = Redis::start().await;
    promise(&Server::start(
        "seckill",
        &[arguments, &["--redis", &redis.url(), "--response-timeout", "10s"]].concat(),
    ))
    .await;
}

#[tokio::test]
async fn ten_orders_of_one_user() {
    on_both(&["--ip-quota", "off"], async |server| {
        let first = server.order("iphone", "alice").await;
        assert_eq!(first.status, 201);
        for _ in 0..4 {
            let again = server.order("iphone", "alice").await;
            assert_eq!(again.problem(409), "/problems/already-ordered");
            assert_eq!(again.json()["order_id"], first.json()["order_id"]);
        }
        for _ in 0..5 {
            let denied = server.order("iphone", "alice").await;
            assert!(denied.problem(429).ends_with("#quota-exceeded"));
            assert_eq!(denied.json()["violated-policies"], serde_json::json!(["user"]));
            assert!((1..=60).contains(&denied.retry_after()));
            assert_eq!(denied.header("ratelimit-policy"), r#""user";q=5;w=60"#);
        }
        assert_eq!(server.order("iphone", "bob").await.status, 201, "others are not held up");
        let level = server.get("/seckill/iphone").await.json();
        let expected =
            serde_json::json!({"sku": "iphone", "stock": 100, "sold": 2, "remaining": 98});
        assert_eq!(level, expected);
    })
    .await;
}

#[tokio::test]
async fn who_waits_as_long_as_told_is_admitted() {
    on_both(&["--quota", "1/2s"], async |server| {
        // However slow the machine, two orders fall into one window sooner or later.
        let denied = loop {
            let answer = server.order("iphone", "alice").await;
            if answer.status == 429 {
                break answer;
            }
        };
        assert!(denied.retry_after() <= 2, "{denied:?}");
        tokio::time::sleep(Duration::from_secs(denied.retry_after())).await;
        assert_eq!(server.order("iphone", "alice").await.status, 409);
    })
    .await;
}

#[tokio::test]
async fn an_order_can_be_looked_up() {
    on_both(&["--stock", "mi.x-5_pro=3"], async |server| {
        let placed = server.order("mi.x-5_pro", "Zoë \"{}\" 陈").await;
        assert_eq!(placed.status, 201);
        let (body, id) = (placed.json(), placed.json()["order_id"].as_str().unwrap().to_owned());
        assert_eq!(body["user"], "Zoë \"{}\" 陈");
        assert_eq!(body["sku"], "mi.x-5_pro");
        assert_eq!(placed.header("location"), format!("/orders/{id}"));

        let found = server.get(placed.header("location")).await;
        assert_eq!((found.status.as_u16(), found.json()), (200, body));
        for other in ["nonsense", "mi.x-5_pro.", &id[1..], &id[..id.len() - 1], "%ff", "a%2Fb"] {
            let missing = server.get(&format!("/orders/{other}")).await;
            assert_eq!(missing.problem(404), "/problems/unknown-order", "{other}");
        }
        let unknown = "mi.x-5_pro.00000000-0000-4000-8000-000000000000";
        server.get(&format!("/orders/{unknown}")).await.problem(404);
    })
    .await;
}

#[tokio::test]
async fn a_sold_out_sku_is_gone_and_never_oversold() {
    on_both(&["--stock", "iphone=10", "--stock", "none=0"], async |server| {
        let orders: Vec<_> = (0..60)
            .map(|user| server.spawn(server.order_request("iphone", &format!("user-{user}"))))
            .collect();
        let mut statuses = Vec::new();
        for order in orders {
            statuses.push(order.await.unwrap().status.as_u16());
        }
        let count = |status| statuses.iter().filter(|it| **it == status).count();
        assert_eq!((count(201), count(410)), (10, 50), "{statuses:?}");
        assert_eq!(server.order("iphone", "late").await.problem(410), "/problems/sold-out");
        assert_eq!(server.get("/seckill/iphone").await.json()["remaining"], 0);
        server.order("none", "alice").await.problem(410);
    })
    .await;
}

#[tokio::test]
async fn every_error_is_a_problem_document() {
    on_both(&[], async |server| {
        let order = || server.request("POST", "/seckill/iphone/orders");
        let send = async |request| -> Answer { server.send(request).await };

        assert_eq!(send(order()).await.problem(401), "/problems/no-user");
        assert_eq!(send(order().header("x-user-id", "")).await.problem(401), "/problems/no-user");
        let twice = order().header("x-user-id", "alice").header("x-user-id", "alice");
        assert_eq!(send(twice).await.problem(400), "/problems/bad-user");
        let latin_1 = HeaderValue::from_bytes(b"Zo\xeb").unwrap();
        send(order().header("x-user-id", latin_1)).await.problem(400);
        send(order().header("x-user-id", "x".repeat(129))).await.problem(400);
        assert_eq!(send(order().header("x-user-id", "x".repeat(128))).await.status, 201);

        for sku in ["android", "a%2Fb", "%ff", "%7Biphone%7D", &"x".repeat(65)] {
            server.order(sku, "bob").await.problem(404);
            let level = server.get(&format!("/seckill/{sku}")).await;
            assert_eq!(level.problem(404), "/problems/unknown-sku", "{sku}");
        }
        server.get("/nowhere").await.problem(404);
        let wrong = server.get("/seckill/iphone/orders").await;
        wrong.problem(405);
        assert_eq!(wrong.header("allow"), "POST");
        send(server.request("DELETE", "/seckill/iphone")).await.problem(405);
    })
    .await;
}

#[tokio::test]
async fn only_orders_are_counted() {
    on_both(&["--quota", "1/60s"], async |server| {
        for _ in 0..3 {
            for method in ["OPTIONS", "GET", "PUT"] {
                let request = server.request(method, "/seckill/iphone/orders");
                server.send(request.header("x-user-id", "alice")).await.problem(405);
            }
            for path in ["/seckill/iphone", "/healthz", "/"] {
                let request = server.request("GET", path).header("x-user-id", "alice");
                assert_eq!(server.send(request).await.status, 200, "{path}");
            }
        }
        assert_eq!(server.order("iphone", "alice").await.status, 201);
        server.order("iphone", "alice").await.problem(429);
        assert_eq!(server.get("/healthz").await.body, "ok");
        let page = server.get("/").await;
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(String::from_utf8_lossy(&page.body).contains(r#""skus":["iphone"]"#));
    })
    .await;
}

#[tokio::test]
async fn a_user_is_who_the_query_or_the_cookie_names_decoded() {
    let path = "/seckill/iphone/orders";
    on_both(&["--user-from", "query:user", "--quota", "2/60s"], async |server| {
        let order = async |query: &str| {
            server.send(server.request("POST", &format!("{path}?{query}"))).await
        };
        assert_eq!(order("user=al+ice").await.json()["user"], "al ice");
        order("user=%61l%20ice&x=1").await.problem(409);
        order("us%65r=al+ic%65").await.problem(429);
        for bad in ["user=alice&user=bob", "user=%ff"] {
            order(bad).await.problem(400);
        }
        order("user=").await.problem(401);
    })
    .await;
    on_both(&["--user-from", "cookie:session"], async |server| {
        let order = async |cookie: &str| {
            server.send(server.request("POST", path).header("cookie", cookie)).await
        };
        assert_eq!(order("a=b; session=alice").await.json()["user"], "alice");
        order("session=alice; session=bob").await.problem(400);
        order("a=b").await.problem(401);
    })
    .await;
}

#[tokio::test]
async fn an_address_has_a_quota_of_its_own() {
    on_both(&["--quota", "2/60s", "--ip-quota", "3/60s"], async |server| {
        assert_eq!(server.order("iphone", "alice").await.status, 201);
        server.order("iphone", "alice").await.problem(409);
        let denied = server.order("iphone", "alice").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["user"]));
        assert_eq!(server.order("iphone", "bob").await.status, 201, "a denial took no place");
        let denied = server.order("iphone", "carol").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["ip"]));
    })
    .await;
}

/// An address that invents users is held to 100 requests a minute unless told otherwise.
#[tokio::test]
async fn invented_users_share_an_address_quota() {
    on_both(&["--stock", "iphone=1000"], async |server| {
        for user in 0..100 {
            assert_eq!(server.order("iphone", &format!("invented-{user}")).await.status, 201);
        }
        let denied = server.order("iphone", "invented-100").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["ip"]));
    })
    .await;
    on_both(&["--stock", "iphone=1000", "--ip-quota", "off"], async |server| {
        for user in 0..200 {
            assert_eq!(server.order("iphone", &format!("invented-{user}")).await.status, 201);
        }
    })
    .await;
}

#[tokio::test]
async fn orders_before_the_opening_are_refused_and_count() {
    on_both(&["--opens-in", "1h", "--quota", "2/60s"], async |server| {
        for _ in 0..2 {
            let early = server.order("iphone", "alice").await;
            assert_eq!(early.problem(403), "/problems/sale-not-open");
            assert_eq!(early.json()["title"], "The sale is not open");
            assert!((3000..=3600).contains(&early.retry_after()));
        }
        server.order("iphone", "alice").await.problem(429);
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], 0);
    })
    .await;
    on_both(&["--opens-at", "2999-01-01T00:00:00+08:00"], async |server| {
        let early = server.order("iphone", "alice").await;
        early.problem(403);
        assert!(early.retry_after() > 365 * 24 * 3600);
    })
    .await;
    on_both(&["--opens-at", "2020-01-01T00:00:00Z"], async |server| {
        assert_eq!(server.order("iphone", "alice").await.status, 201);
    })
    .await;
}

#[tokio::test]
async fn who_comes_at_the_opening_as_told_can_buy() {
    let started = Instant::now();
    let server = Server::start("seckill", &["--opens-in", "2s"]);
    let early = server.order("iphone", "alice").await;
    if started.elapsed() < Duration::from_secs(2) {
        early.problem(403);
        assert!(early.retry_after() <= 2);
        tokio::time::sleep(Duration::from_secs(early.retry_after())).await;
        assert_eq!(server.order("iphone", "alice").await.status, 201);
    }
}
