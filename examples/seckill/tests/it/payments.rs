//! Orders that are paid, or come back.

use crate::*;

#[tokio::test]
async fn an_order_is_paid_once() {
    on_both(&format!("--payment-token {TOKEN} --pay-within 1h"), async |server| {
        let order = server.order("iphone", "alice").await.json();
        assert!((3_500_000..=3_600_000).contains(&number(&order["pay_in_ms"])), "{order}");
        let path = format!("/orders/{}", order["order_id"].as_str().unwrap());
        let by_hand = server.request("POST", &format!("{path}/payment"));
        server.send_body(by_hand, r#"{"payment_id": "1"}"#).await.problem(401);
        let [none, long] = ["".into(), "x".repeat(129)].map(|id| json!({ "payment_id": id }));
        for wrong in [json!(1), json!({}), json!(["1"]), none, long] {
            let refused = server.send_body(payment(server, &order), wrong.to_string()).await;
            assert_eq!(refused.problem(400), "/problems/bad-payment", "{wrong}");
        }
        assert_eq!(by(server, "alice", "GET", &path).await.json()["paid"], false);
        for _ in 0..2 {
            let paid = pay(server, &order, "1").await;
            assert_eq!(paid.json(), json!({ "order_id": order["order_id"], "paid": true }));
            assert_eq!(pay(server, &order, "2").await.problem(409), "/problems/already-paid");
        }
        let of_bob = server.order("iphone", "bob").await.json();
        assert_eq!(pay(server, &of_bob, "1").await.problem(409), "/problems/payment-used");
        let shown = by(server, "alice", "GET", &path).await.json();
        shows(&shown, json!({ "paid": true, "pay_in_ms": null }));
        let none = json!({ "order_id": NO_ORDER });
        assert_eq!(pay(server, &none, "3").await.problem(404), "/problems/unknown-order");
        eventually("the payment is seen", async || level(server).await["paid"] == 1).await;
    })
    .await;
}

#[tokio::test]
async fn an_unpaid_piece_is_for_sale_again() {
    let terms = format!("{FREE} --stock iphone=1 --pay-within 2s --payment-token {TOKEN}");
    on_both(&terms, async |server| {
        let late = server.order("iphone", "alice").await.json();
        server.order("iphone", "bob").await.problem(410);
        // Who comes first may be the same user.
        for user in ["alice", "bob"] {
            let is_sold = async || server.order("iphone", user).await.status == 201;
            eventually("it comes back", is_sold).await;
        }
        let order = server.order("iphone", "bob").await.json();
        let is_over = async |over| level(server).await["over"] == over;
        assert!(is_over(false).await, "it can come back");
        assert_eq!(pay(server, &order, "1").await.status, 200);
        eventually("nothing can come back", async || is_over(true).await).await;
        for _ in 0..2 {
            assert_eq!(pay(server, &late, "2").await.problem(409), "/problems/paid-too-late");
        }
        let path = format!("/orders/{}", late["order_id"].as_str().unwrap());
        by(server, "alice", "GET", &path).await.problem(404);
        server.order("iphone", "alice").await.problem(410);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(server.order("iphone", "bob").await.problem(409), "/problems/already-ordered");
    })
    .await;
}

/// The provider calls again, and may reach a server that sells it.
#[tokio::test]
async fn a_payment_of_a_sku_that_is_not_on_sale_here_is_a_503() {
    let redis = Redis::start().await;
    let servers = ["iphone=1", "pixel=1"]
        .map(|stock| on_redis(&redis, &format!("{ADMIN} --payment-token {TOKEN} --stock {stock}")));
    let order = servers[0].order("iphone", "alice").await.json();
    assert_eq!(pay(&servers[1], &order, "1").await.problem(503), "/problems/not-on-sale");
    if cfg!(feature = "metrics") {
        let line = "seckill_payments_total{outcome=\"unavailable\"} 1";
        let is_shown = async || servers[1].ask("GET", "/metrics", "").await.body.contains(line);
        eventually(line, is_shown).await;
    }
    assert_eq!(pay(&servers[0], &order, "1").await.status, 200);
    let answer = pay(&servers[0], &json!({ "order_id": NO_ORDER }), "2").await;
    assert_eq!(answer.problem(404), "/problems/unknown-order");
    assert_eq!(answer.json()["detail"], "The payment is recorded for a refund.");
}
