//! Thresholds that an operator changes on every server.

use serde_json::{Value, json};
use test_support::policy_file::{PolicyFile, READ_AGAIN};
use test_support::server_process::{HttpResponse, Server};
use test_support::{Redis, eventually};

use crate::{TOKEN, admin_request, alone, on_both, on_redis, stop};

const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

async fn put(server: &Server, name: &str, body: &str) -> HttpResponse {
    let request = admin_request(server, "PUT", &format!("/admin/policies/{name}"));
    server.send_body(request, body.to_owned()).await
}

/// Returns a policy as the admin listener shows it.
async fn policy(server: &Server, name: &str) -> Value {
    let shown = server.send(admin_request(server, "GET", "/admin/policies")).await.json();
    let policies = shown["policies"].as_array().unwrap();
    policies.iter().find(|policy| policy["name"] == name).cloned().unwrap_or_default()
}

async fn has_quotas(server: &Server, quotas: &str) {
    let has = async || policy(server, "user").await["quotas"] == quotas;
    eventually(&format!("the server has {quotas}"), has).await;
}

/// Sends orders until one is denied, and returns how many were admitted.
async fn admitted(server: &Server, user: &str) -> usize {
    let mut count = 0;
    while server.order("none-such", user).await.status == 404 {
        count += 1;
    }
    count
}

#[tokio::test]
async fn threshold_changes_on_every_server() {
    let redis = Redis::start().await;
    let flags = [&ADMIN[..], &["--quota", "3/1h", "--ban", "9/1h:1h"]].concat();
    let servers = [on_redis(&redis, &flags), on_redis(&redis, &flags)];
    assert_eq!(admitted(&servers[1], "alice").await, 3);
    let changed = put(&servers[0], "user", r#"{"quotas": "5/1h", "candidates": "4/1h"}"#).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    for server in &servers {
        has_quotas(server, "5/1h").await;
        let policy = policy(server, "user").await;
        assert_eq!(policy["candidates"], "4/1h");
        assert_eq!(policy["penalty"], "9/1h:1h", "the penalty stays");
    }
    assert_eq!(admitted(&servers[1], "alice").await, 2, "three are in the log");
    // It outlives the servers.
    servers.into_iter().for_each(|server| drop(stop(server)));
    let again = on_redis(&redis, &flags);
    assert_eq!(policy(&again, "user").await["quotas"], "5/1h");
    again.send(admin_request(&again, "DELETE", "/admin/policies/user")).await;
    has_quotas(&again, "3/1h").await;
}

#[tokio::test]
async fn lost_threshold_is_written_again() {
    let redis = Redis::start().await;
    let flags = [&ADMIN[..], &["--quota", "3/1h"]].concat();
    let server = on_redis(&redis, &flags);
    put(&server, "user", r#"{"quotas": "5/1h"}"#).await;
    redis.run::<()>(&["DEL", "seckill:policies"]).await;
    let is_back = async || redis.run::<bool>(&["EXISTS", "seckill:policies"]).await;
    eventually("the running server writes it", is_back).await;
    has_quotas(&on_redis(&redis, &flags), "5/1h").await;
}

#[tokio::test]
async fn threshold_stays_when_the_file_is_read() {
    let file = PolicyFile::new("policies.toml", "[policies]\nuser = '3/1h'\nip = '900/1h'\n");
    let server = alone(&[&ADMIN[..], &file.flags()].concat());
    put(&server, "user", r#"{"quotas": "5/1h"}"#).await;
    file.replace("[policies]\nuser = '7/1h'\nip = '800/1h'\n", &server);
    server.logs_until(READ_AGAIN, 1).await;
    has_quotas(&server, "5/1h").await;
    assert_eq!(policy(&server, "ip").await["quotas"], "800/1h");
    server.send(admin_request(&server, "DELETE", "/admin/policies/user")).await;
    has_quotas(&server, "7/1h").await;
    let logs = stop(server);
    assert!(logs.contains("user: stays as an operator has set it"), "{logs}");
    assert!(logs.contains("audit: a policy was changed"), "{logs}");
}

#[tokio::test]
async fn malformed_threshold_changes_nothing() {
    on_both(&[&ADMIN[..], &["--ip-quota", "off"]].concat(), async |server| {
        let before = policy(server, "user").await;
        for body in [
            "",
            "5/60s",
            "{}",
            r#"{"quotas": 5}"#,
            r#"{"quotas": ""}"#,
            r#"{"quotas": "5/soon"}"#,
            r#"{"quotas": "5/60s", "candidates": "x"}"#,
            r#"{"quotas": "5/60s", "penalty": "manual"}"#,
        ] {
            let refused = put(server, "user", body).await;
            assert_eq!(refused.problem(400), "/problems/bad-policy", "{body}");
        }
        for name in ["ip", "none", "%ff"] {
            let refused = put(server, name, r#"{"quotas": "5/60s"}"#).await;
            assert_eq!(refused.problem(404), "/problems/unknown-policy", "{name}");
        }
        assert_eq!(policy(server, "user").await, before);
    })
    .await;
}

#[tokio::test]
async fn log_of_a_user_is_explained() {
    on_both(&[&ADMIN[..], &["--quota", "2/10m"]].concat(), async |server| {
        for _ in 0..3 {
            server.order("iphone", "a/b 陈").await;
        }
        let path = "/admin/explain/a%2Fb%20%E9%99%88";
        let explained = server.send(admin_request(server, "GET", path)).await.json();
        assert_eq!((&explained["admitted"], &explained["policy"]), (&json!(false), &json!("user")));
        let quota = &explained["quotas"][0];
        assert_eq!((&quota["taken"], &quota["free"]), (&json!(2), &json!(0)), "{explained}");
        assert_eq!(quota["admissions"].as_array().unwrap().len(), 2);
        let odd = server.send(admin_request(server, "GET", "/admin/explain/%ff")).await;
        assert_eq!(odd.problem(400), "/problems/bad-user");
    })
    .await;
}
