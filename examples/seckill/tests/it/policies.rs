//! Quotas that an operator changes on every server.

use serde_json::{Value, json};
use test_support::requests::HttpResponse;
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::{ADMIN, alone, on_redis};

/// Sends orders until one is denied, and returns how many were admitted.
async fn admitted(server: &Server, user: &str) -> usize {
    let mut count = 0;
    while server.order("none-such", user).await.status == 404 {
        count += 1;
    }
    count
}

async fn put(server: &Server, name: &str, body: &str) -> HttpResponse {
    server.ask("PUT", &format!("/admin/policies/{name}"), body).await
}

/// Returns a policy as the admin listener shows it.
async fn policy(server: &Server, name: &str) -> Value {
    let shown = server.ask("GET", "/admin/policies", "").await.json();
    let policies = shown["policies"].as_array().unwrap();
    policies.iter().find(|policy| policy["name"] == name).cloned().unwrap_or_default()
}

async fn has_quotas(server: &Server, quotas: &str) {
    let has = async || policy(server, "user").await["quotas"] == quotas;
    eventually(&format!("the server has {quotas}"), has).await;
}

#[tokio::test]
async fn quotas_change_on_every_server() {
    let redis = Redis::start().await;
    let flags = [&ADMIN[..], &["--quota", "3/60s", "--ban", "9/1h:1h"]].concat();
    let servers = [on_redis(&redis, &flags), on_redis(&redis, &flags)];
    assert_eq!(admitted(&servers[1], "alice").await, 3);
    let changed = put(&servers[0], "user", r#"{"quotas": "5/60s"}"#).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    for server in &servers {
        has_quotas(server, "5/60s").await;
        assert_eq!(policy(server, "user").await["penalty"], "9/1h:1h", "the penalty stays");
    }
    assert_eq!(admitted(&servers[1], "alice").await, 2, "three are in the log");
    // One change does not undo another, and one that has missed another is refused.
    let version = changed.json()["version"].clone();
    assert_eq!(put(&servers[1], "ip", r#"{"quotas": "900/1h"}"#).await.status, 200);
    let late = json!({ "quotas": "6/1h", "version": version }).to_string();
    let late = put(&servers[0], "user", &late).await;
    assert_eq!(late.problem(409), "/problems/not-changed");
    let present = json!({ "quotas": "6/1h", "version": late.json()["version"] }).to_string();
    assert_eq!(put(&servers[0], "user", &present).await.status, 200);
    has_quotas(&servers[1], "6/1h").await;
    // It outlives a server.
    let [old, stopped] = servers;
    assert!(stopped.stop().contains("audit: the policies of an operator are in force"));
    let new = on_redis(&redis, &flags);
    assert_eq!(policy(&new, "user").await["quotas"], "6/1h");
    assert_eq!(policy(&new, "ip").await["quotas"], "900/1h");
    put(&new, "user", r#"{"quotas": "2/60s"}"#).await;
    has_quotas(&old, "2/60s").await;
    let newest = on_redis(&redis, &flags);
    assert_eq!([admitted(&old, "bob").await, admitted(&newest, "bob").await], [2, 0], "one log");
    new.ask("DELETE", "/admin/policies/user", "").await;
    has_quotas(&newest, "3/60s").await;
}

/// As a newer server may write them.
#[tokio::test]
async fn quotas_that_cannot_be_read_are_not_overwritten() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &ADMIN);
    let newer = r#"{"user":{"quotas":"9/1h"}}"#;
    redis.run::<()>(&["HSET", "seckill:policies", "version", "5", "document", newer]).await;
    for method in ["PUT", "DELETE"] {
        let refused = server.ask(method, "/admin/policies/user", r#"{"quotas": "5/60s"}"#).await;
        assert_eq!(refused.problem(409), "/problems/policies-not-read");
    }
    assert_eq!(redis.run::<String>(&["HGET", "seckill:policies", "document"]).await, newer);
    let shown = server.ask("GET", "/admin/policies", "").await.json();
    assert_eq!((&shown["stale"], &shown["version"]), (&json!(true), &json!(5)));
}

#[tokio::test]
async fn malformed_quotas_change_nothing() {
    let server = &alone(&[&ADMIN[..], &["--ip-quota", "off"]].concat());
    let before = policy(server, "user").await;
    for body in [
        "",
        "{}",
        r#"["5/60s", 1]"#,
        r#"{"quotas": 5}"#,
        r#"{"quotas": ""}"#,
        r#"{"quotas": "5/soon"}"#,
        r#"{"quotas": "5/60s", "penalty": "manual"}"#,
    ] {
        let refused = put(server, "user", body).await;
        assert_eq!(refused.problem(400), "/problems/bad-policy", "{body}");
    }
    for name in ["ip", "accounts", "%ff"] {
        let refused = put(server, name, r#"{"quotas": "5/60s"}"#).await;
        assert_eq!(refused.problem(404), "/problems/unknown-policy", "{name}");
        assert!(refused.body.contains("`accounts` be explained"), "{refused:?}");
    }
    assert_eq!(policy(server, "user").await, before);
}
