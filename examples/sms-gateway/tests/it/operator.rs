//! The admin listener, and what a flood of refusals costs.

use serde_json::json;
use test_support::Redis;
use test_support::server_process::Server;

use crate::{ADMIN, ALICE, BOB, GATEWAY, TOKEN, operator, put, shown, sms, spawn_sms, start, stop};

const ROUTES: [(&str, &str); 8] = [
    ("GET", "/policies"),
    ("PUT", "/policies/channel"),
    ("DELETE", "/policies/institution/bank"),
    ("PUT", "/institutions/post"),
    ("DELETE", "/channels/otp"),
    ("GET", "/refusals"),
    ("GET", "/downstream"),
    ("PUT", "/downstream"),
];

#[tokio::test]
async fn operator_routes_need_the_admin_listener() {
    let server = start(&[]);
    for (method, path) in ROUTES {
        server.send(server.request(method, path)).await.problem(404);
        server.send(server.admin_request(method, path)).await.problem(401);
        let wrong = format!("Bearer {}x", TOKEN);
        let wrong = server.admin_request(method, path).header("authorization", wrong);
        server.send(wrong).await.problem(401);
        let forwarded = operator(&server, method, path).header("x-forwarded-for", "192.0.2.7");
        server.send(forwarded).await.problem(403);
        let answer = server.send(operator(&server, method, path)).await;
        assert!(!matches!(answer.status.as_u16(), 401 | 403 | 405), "{method} {path}: {answer:?}");
    }
    server.send(operator(&server, "POST", "/sms")).await.problem(404);
    assert_eq!(sms(&server, "post", ALICE).await.status, 422, "its channel was deleted");
    let quiet = Server::start(GATEWAY, &[]);
    quiet.get("/policies").await.problem(404);
}

#[tokio::test]
async fn no_text_of_a_caller_forges_a_log_line() {
    let server = Server::start_logging(GATEWAY, "debug", &ADMIN);
    let path = "/policies/institution/x%0a2026-01-01T00:00:00Z%20%20INFO%20forged%1b%5b31m";
    put(&server, path, "1/1s\u{1b}[31m\nforged").await;
    put(&server, "/institutions/a%0aforged", "").await;
    let body = json!({ "institution": "a\nforged", "channel": "otp", "to": "\u{1b}", "text": "x" });
    server.send_body(server.request("POST", "/sms"), body.to_string()).await;
    let logs = stop(server);
    let forged = |line: &&str| line.starts_with("forged") || line.starts_with("2026-01-01T");
    assert!(logs.lines().find(forged).is_none() && !logs.contains('\u{1b}'), "{logs}");
}

#[tokio::test]
async fn a_flood_of_refusals_costs_redis_little() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url(), "--institution", "bank=1/1h"]);
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
    assert_eq!(sms(&server, "bank", BOB).await.status, 429);
    redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    let begun = std::time::Instant::now();
    for round in 0..10 {
        let sent = (0..100)
            .map(|number| spawn_sms(&server, "bank", &format!("+1555{:07}", round * 100 + number)));
        for message in sent.collect::<Vec<_>>() {
            assert_eq!(message.await.unwrap().status, 429);
        }
    }
    let decisions = redis.call_count("evalsha").await;
    let most = 5 * (begun.elapsed().as_secs() + 1);
    assert!(decisions <= most, "{decisions} decisions for 1,000 refusals");
    let counts = shown(&server, "/refusals").await;
    assert_eq!(counts["institutions"]["bank"]["total"]["institution"], 1001);
}
