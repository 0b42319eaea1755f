//! Orders of single users, whether the state is in process or in Redis.

use serde_json::json;
use test_support::eventually;

use crate::{by, on_both};

#[tokio::test]
async fn five_of_ten_orders_pass_the_limit() {
    on_both(&["--ip-quota", "off"], async |server| {
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
        let level = json!({
            "sku": "iphone", "stock": 100, "sold": 2, "remaining": 98, "opens_in_ms": null,
            "mode": "first-come", "commitment": null, "secret": null, "entries": 0, "turns": 0, "paid": 0,
            "over": false,
        });
        let is_seen = async || server.get("/seckill/iphone").await.json() == level;
        eventually("the orders are seen", is_seen).await;
    })
    .await;
}

#[tokio::test]
async fn an_order_is_shown_to_its_user_only() {
    on_both(&["--stock", "mi.x-5_pro=3"], async |server| {
        let user = "Zoë \"{}\" 陈";
        let placed = server.order("mi.x-5_pro", user).await;
        assert_eq!(placed.status, 201);
        assert_eq!(placed.json()["user"], user);
        let path = placed.header("location").unwrap();
        let shown = by(server, user, "GET", path).await.json();
        assert_eq!(
            (&shown["order_id"], &shown["user"]),
            (&placed.json()["order_id"], &json!(user))
        );
        let of_another = by(server, "bob", "GET", path).await;
        assert_eq!(of_another.problem(404), "/problems/unknown-order");
        let unknown = "/orders/mi.x-5_pro.00000000-0000-4000-8000-000000000000";
        let unknown = by(server, "bob", "GET", unknown).await;
        assert_eq!(of_another.body, unknown.body, "a client can't tell the two apart");
        server.get(path).await.problem(401);
    })
    .await;
}

#[tokio::test]
async fn early_orders_are_refused_and_count() {
    on_both(&["--first-come", "--opens-in", "1h", "--quota", "2/60s"], async |server| {
        for _ in 0..2 {
            let early = server.order("iphone", "alice").await;
            assert_eq!(early.problem(403), "/problems/sale-not-open");
            assert!((3000..=3600).contains(&early.retry_after().unwrap()));
        }
        server.order("iphone", "alice").await.problem(429);
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], 0);
    })
    .await;
}
