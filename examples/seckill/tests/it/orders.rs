//! Orders of single users, and requests that no honest client sends: each has its answer, sells nothing that it
//! should not, and leaves nothing in Redis but a log that expires.

use http::HeaderValue;

use crate::*;

#[tokio::test]
async fn five_of_ten_orders_pass_the_limit() {
    on_both("--ip-quota off", async |server| {
        for (method, path, status) in [
            ("PUT", "/seckill/iphone/orders", 405),
            ("GET", "/seckill/iphone/orders", 405),
            ("GET", "/seckill/iphone", 200),
        ] {
            // Not an order, and not counted.
            assert_eq!(by(server, "alice", method, path).await.status, status, "{method} {path}");
        }
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
            assert_eq!(denied.json()["violated-policies"], json!(["user"]));
            assert!((1..=60).contains(&denied.retry_after().unwrap()));
            assert_eq!(denied.headers["ratelimit-policy"], r#""user";q=5;w=60"#);
        }
        assert_eq!(server.order("iphone", "bob").await.status, 201, "others are not held up");
        let expected = json!({
            "sku": "iphone", "stock": 100, "sold": 2, "remaining": 98, "opens_in_ms": null,
            "mode": "first-come", "commitment": null, "secret": null, "entries": 0, "turns": 0, "paid": 0,
            "over": false,
        });
        eventually("the orders are seen", async || level(server).await == expected).await;
    })
    .await;
}

#[tokio::test]
async fn an_order_is_shown_to_its_user_only() {
    on_both("--stock mi.x-5_pro=3", async |server| {
        let user = "Zoë \"{}\" 陈";
        let placed = server.order("mi.x-5_pro", user).await;
        assert_eq!(placed.status, 201);
        let expected = json!({ "user": user, "order_id": placed.json()["order_id"] });
        shows(&placed.json(), expected.clone());
        let path = placed.header("location").unwrap();
        shows(&by(server, user, "GET", path).await.json(), expected);
        let of_another = by(server, "bob", "GET", path).await;
        assert_eq!(of_another.problem(404), "/problems/unknown-order");
        let unknown = "/orders/mi.x-5_pro.00000000-0000-4000-8000-000000000000";
        let unknown = by(server, "bob", "GET", unknown).await;
        assert_eq!(of_another.body, unknown.body, "a client can't tell the two apart");
        server.get(path).await.problem(401);
    })
    .await;
}

/// Part of each user id. No error and no log may show it.
const USER: &str = "Lysistrata";
const ORDER: &str = "POST /seckill/iphone/orders";

#[tokio::test]
async fn every_request_is_handled() {
    let (nil, long) = ("00000000-0000-0000-0000-000000000000", USER.repeat(13));
    let by = |user: &[u8], status| (ORDER.to_owned(), user.to_owned(), status);
    let mut cases = vec![
        by(b"", 401),
        by(b"Lysistrata\xc0\xaf", 400),
        by("Lysistrata\u{fffd}".as_bytes(), 400),
        by(b"sha256:Lysistrata", 400),
        by(b"Lysi\tstrata", 400),
        // No URL of the operator has them.
        by(b"..", 400),
        by(b".", 400),
        by(&long.as_bytes()[..129], 400),
        by(&long.as_bytes()[..128], 201),
        by("Lysistrata-Λυσιστράτη-利西翠姐-🕊".as_bytes(), 201),
        by(b"Lampito}:user:60s", 201),
        by(b"Lysistrata; FLUSHALL *1 $8 $(id) `id` ../../ %s%n", 201),
        (format!("GET /orders/iphone.{nil}"), Vec::new(), 401),
        // In place of the header a query may name the user, and only then.
        (format!("{ORDER}?user="), Vec::new(), 401),
        (format!("{ORDER}?user=Lysistrata&us%65r=Lysistrata"), Vec::new(), 400),
        (format!("{ORDER}?user=%0D%0AINFO+Lysistrata"), Vec::new(), 400),
        (format!("{ORDER}?user=Lampito"), b"Myrrhine".to_vec(), 201),
        (format!("{ORDER}?user=Myrrhine"), Vec::new(), 409),
    ];
    for order in [&format!("iphone.{nil}"), "*", "%ff", "a%2Fb"] {
        cases.push((format!("GET /orders/{order}"), USER.into(), 404));
    }
    for sku in ["android", "iphone%00", "%7Biphone%7D", "=Lampito", "%ff", "a/b"] {
        let user = format!("{USER}-{}", cases.len());
        cases.push((format!("POST /seckill/{sku}/orders"), user.into(), 404));
    }
    let redis = Redis::start().await;
    let flags = "--ip-quota 1000/60s --stock iphone=1000 --user-query user";
    for server in [alone(flags), on_redis(&redis, flags)] {
        for (line, user, expected) in &cases {
            let (method, path) = line.split_once(' ').unwrap();
            let user = HeaderValue::from_bytes(user).unwrap();
            // The limit by address believes the peer's, and no header.
            let request = server.request(method, path).header("x-forwarded-for", "6.6.6.6");
            let request = if user.is_empty() { request } else { request.header("x-user-id", user) };
            let answer = server.send(request).await;
            assert_eq!(answer.status, *expected, "{line}: {answer:?}");
            if method == "GET" {
                // A cache in front would answer other users with it.
                assert_eq!(answer.header("cache-control"), Some("no-store"), "{line}");
            }
            if answer.status != 201 {
                answer.problem(*expected);
                let shown = format!("{:?} {:?}", answer.headers, answer.body);
                assert!(!shown.contains(USER), "{line} shows the user: {shown}");
            }
        }
        let both = server.request("POST", "/seckill/iphone/orders?user=Lampito");
        let both = both.header("x-user-id", "Myrrhine").header("x-user-id", "Kalonike");
        server.send(both).await.problem(400);
        let logs = server.stop();
        assert!(!logs.contains("ERROR") && !logs.contains(USER), "{logs}");
    }
    let sold = cases.iter().filter(|(.., status)| *status == 201).count();
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, sold);
    for key in redis.keys().await {
        let ttl = redis.run::<i64>(&["TTL", &key]).await;
        if let Some(record) = key.strip_prefix("seckill:{iphone}:") {
            assert!(["stock", "buyers", "orders", "draw", "held"].contains(&record), "{key}");
            assert_eq!(ttl, -1, "{key}");
        } else {
            let is_log = key.ends_with("}:user:60s") || key.ends_with("}:ip:60s");
            assert!(key.starts_with("seckill:{=") && is_log, "{key}");
            assert!((1..=61).contains(&ttl), "{key}");
        }
    }
}
