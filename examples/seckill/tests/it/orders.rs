//! Orders of single users, whether the state is in process or in Redis.

use std::time::Duration;

use serde_json::json;

use crate::{alone, count, on_both, responses};

#[tokio::test]
async fn five_of_ten_orders_pass_the_limit() {
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
            assert_eq!(denied.json()["violated-policies"], json!(["user"]));
            assert!((1..=60).contains(&denied.retry_after()));
            assert_eq!(denied.header("ratelimit-policy"), r#""user";q=5;w=60"#);
        }
        assert_eq!(server.order("iphone", "bob").await.status, 201, "others are not held up");
        let level = server.get("/seckill/iphone").await.json();
        let expected = json!({
            "sku": "iphone",
            "stock": 100,
            "sold": 2,
            "remaining": 98,
            "opens_in_ms": null,
        });
        assert_eq!(level, expected);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_waits_is_admitted() {
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
        assert_eq!((&body["user"], &body["sku"]), (&json!("Zoë \"{}\" 陈"), &json!("mi.x-5_pro")));
        assert_eq!(placed.header("location"), format!("/orders/{id}"));
        let user = "Zoë \"{}\" 陈";
        let get = async |path: &str| {
            server.send(server.request("GET", path).header("x-user-id", user)).await
        };
        let found = get(placed.header("location")).await;
        assert_eq!((found.status.as_u16(), found.json()), (200, body));
        for other in ["nonsense", "mi.x-5_pro.", &id[1..], &id[..id.len() - 1], "%ff", "a%2Fb"] {
            let missing = get(&format!("/orders/{other}")).await;
            assert_eq!(missing.problem(404), "/problems/unknown-order", "{other}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_order_is_shown_to_its_user_only() {
    on_both(&[], async |server| {
        let placed = server.order("iphone", "alice").await;
        let path = placed.header("location").to_owned();
        let get = async |path: &str, user: &str| {
            server.send(server.request("GET", path).header("x-user-id", user)).await
        };
        assert_eq!(get(&path, "alice").await.json(), placed.json());
        let of_another = get(&path, "bob").await;
        assert_eq!(of_another.problem(404), "/problems/unknown-order");
        let unknown = get("/orders/iphone.00000000-0000-4000-8000-000000000000", "bob").await;
        assert_eq!(of_another.body, unknown.body, "a client can't tell the two apart");
        assert_eq!(server.get(&path).await.problem(401), "/problems/no-user");
    })
    .await;
}

#[tokio::test]
async fn a_rush_never_oversells() {
    on_both(&["--stock", "iphone=10", "--stock", "none=0"], async |server| {
        let order = |user| server.spawn(server.order_request("iphone", &format!("user-{user}")));
        let answers = responses((0..60).map(order).collect::<Vec<_>>()).await;
        assert_eq!((count(&answers, 201), count(&answers, 410)), (10, 50), "{answers:?}");
        assert_eq!(server.order("iphone", "late").await.problem(410), "/problems/sold-out");
        assert_eq!(server.get("/seckill/iphone").await.json()["remaining"], 0);
        server.order("none", "alice").await.problem(410);
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
        let page = server.get("/").await;
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(String::from_utf8_lossy(&page.body).contains(r#""skus":["iphone"]"#));
    })
    .await;
}

#[tokio::test]
async fn invented_users_share_an_address_quota() {
    on_both(&["--stock", "iphone=1000", "--quota", "2/60s"], async |server| {
        for _ in 0..2 {
            server.order("iphone", "alice").await;
        }
        let denied = server.order("iphone", "alice").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], json!(["user"]));
        // The denial has taken no place: 98 of the 100 are left for the address.
        for user in 0..98 {
            assert_eq!(server.order("iphone", &format!("invented-{user}")).await.status, 201);
        }
        let denied = server.order("iphone", "invented-98").await;
        denied.problem(429);
        assert_eq!(denied.json()["violated-policies"], json!(["ip"]));
    })
    .await;
}

#[tokio::test]
async fn early_orders_are_refused_and_count() {
    on_both(&["--opens-in", "1h", "--quota", "2/60s"], async |server| {
        for _ in 0..2 {
            let early = server.order("iphone", "alice").await;
            assert_eq!(early.problem(403), "/problems/sale-not-open");
            assert!((3000..=3600).contains(&early.retry_after()));
        }
        server.order("iphone", "alice").await.problem(429);
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], 0);
    })
    .await;
    let server = alone(&["--opens-at", "2999-01-01T00:00:00+08:00"]);
    let early = server.order("iphone", "alice").await;
    early.problem(403);
    assert!(early.retry_after() > 365 * 24 * 3600);
    let server = alone(&["--opens-at", "2020-01-01T00:00:00Z"]);
    assert_eq!(server.order("iphone", "alice").await.status, 201);
}
