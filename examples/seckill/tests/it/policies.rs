//! Policies from a file that is read again on SIGHUP, and thresholds that an operator changes on every
//! server.

use serde_json::{Value, json};
use test_support::policy_file::{BROKEN, PolicyFile, READ_AGAIN};
use test_support::server_process::{HttpResponse, Server, refuses, run};
use test_support::{Redis, eventually};

use crate::{ADMIN, SECKILL, alone, ask, on_redis, stop};

/// Sends orders until one is denied, and returns how many were admitted.
async fn admitted(server: &Server, user: &str) -> usize {
    let mut count = 0;
    while server.order("none-such", user).await.status == 404 {
        count += 1;
    }
    count
}

async fn put(server: &Server, name: &str, body: &str) -> HttpResponse {
    ask(server, "PUT", &format!("/admin/policies/{name}"), body).await
}

/// Returns a policy as the admin listener shows it.
async fn policy(server: &Server, name: &str) -> Value {
    let shown = ask(server, "GET", "/admin/policies", "").await.json();
    let policies = shown["policies"].as_array().unwrap();
    policies.iter().find(|policy| policy["name"] == name).cloned().unwrap_or_default()
}

async fn has_quotas(server: &Server, quotas: &str) {
    let has = async || policy(server, "user").await["quotas"] == quotas;
    eventually(&format!("the server has {quotas}"), has).await;
}

#[tokio::test]
async fn sighup_changes_the_quota_and_keeps_the_log() {
    let redis = Redis::start().await;
    for store in [None, Some(&redis)] {
        let file = PolicyFile::new("policies.toml", "[policies]\nuser = '3/1h'\nip = '1000/60s'\n");
        let server = match store {
            None => alone(&file.flags()),
            Some(redis) => on_redis(redis, &file.flags()),
        };
        assert_eq!(admitted(&server, "alice").await, 3);
        let text = "[policies]\nuser = { quotas = '5/1h', penalty = '1/1h:1h' }\nip = '900/60s'";
        file.replace(text, &server);
        server.logs_until(READ_AGAIN, 1).await;
        assert_eq!(admitted(&server, "alice").await, 2, "three are in the log");
        server.order("none-such", "alice").await.problem(403);
        let logs = stop(server);
        let both = "ip: quotas 1000/60s -> 900/60s; user: quotas 3/1h -> 5/1h, penalty none";
        assert!(logs.contains(both), "{logs}");
    }
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_policies() {
    let good = "[policies]\nuser = '3/1h'\nip = '1000/60s'\n";
    let file = PolicyFile::new("policies.toml", good);
    let server = alone(&file.flags());
    let cases = [
        ("[policies]\nuser = '9/1h'\nip = '9/sixty'\n", "line 3, column 6: policy \\\"ip\\\""),
        ("[policies]\nuser = '9/1h'\n", "in use: \\\"ip\\\""),
        ("[policies]\nuser = '9/1h'\nip = '9/1h'\nvip = '9/1h'\n", "\\\"vip\\\" is unknown"),
        ("user = '9/1h'\n", "line 1, column 1: unknown field `user`"),
        ("", "missing field `policies`"),
        ("[policies]\n", "there is no policy"),
    ];
    for (number, (text, part)) in cases.iter().enumerate() {
        file.replace(text, &server);
        server.logs_until(BROKEN, number + 1).await;
        server.logs_until(part, 1).await;
    }
    file.remove();
    server.signal("HUP");
    server.logs_until("No such file", 1).await;
    assert_eq!(admitted(&server, "alice").await, 3);
    file.replace(good, &server);
    server.logs_until("nothing has changed", 1).await;
}

#[test]
fn a_wrong_file_prevents_the_start() {
    for (name, text, part) in [
        ("p.toml", "[policies]\nuser = '5/sixty'", "line 2, column 8: policy \"user\""),
        ("p.json", "{\"policies\":\n{\"user\": 5}}", "line 2 column 10"),
    ] {
        let file = PolicyFile::new(name, text);
        let output = run(SECKILL, &[&["--listen", "127.0.0.1:0"], &file.flags()[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let all = [part, name, "hint: "];
        assert!(all.iter().all(|part| stderr.contains(part)), "{part}: {stderr}");
    }
    refuses(
        SECKILL,
        &[
            (&["--policies", "p.yaml"], ".toml or .json"),
            (&["--quota", "5/60s", "--policies", "p.toml"], "--policies"),
        ],
    );
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
    // One change does not undo another, and one that has missed another is refused.
    let version = changed.json()["version"].clone();
    assert_eq!(put(&servers[1], "ip", r#"{"quotas": "900/1h"}"#).await.status, 200);
    let late = json!({ "quotas": "6/1h", "version": version }).to_string();
    let late = put(&servers[0], "user", &late).await;
    assert_eq!(late.problem(409), "/problems/not-changed");
    let present = json!({ "quotas": "6/1h", "version": late.json()["version"] }).to_string();
    assert_eq!(put(&servers[0], "user", &present).await.status, 200);
    // It outlives the servers.
    servers.into_iter().for_each(|server| drop(stop(server)));
    let again = on_redis(&redis, &flags);
    assert_eq!(policy(&again, "user").await["quotas"], "6/1h");
    assert_eq!(policy(&again, "ip").await["quotas"], "900/1h");
    ask(&again, "DELETE", "/admin/policies/user", "").await;
    has_quotas(&again, "3/1h").await;
}

#[tokio::test]
async fn threshold_stays_when_the_file_is_read() {
    let file = PolicyFile::new("policies.toml", "[policies]\nuser = '3/1h'\nip = '900/1h'\n");
    let server = alone(&[&ADMIN[..], &file.flags()].concat());
    put(&server, "user", r#"{"quotas": "5/1h"}"#).await;
    file.replace("[policies]\nuser = '7/1h'\nip = '800/1h'\n", &server);
    server.logs_until("user: stays as an operator has set it", 1).await;
    assert_eq!(policy(&server, "user").await["quotas"], "5/1h");
    assert_eq!(policy(&server, "ip").await["quotas"], "800/1h");
    ask(&server, "DELETE", "/admin/policies/user", "").await;
    assert_eq!(policy(&server, "user").await["quotas"], "7/1h");
    assert!(stop(server).contains("audit: "));
}

#[tokio::test]
async fn malformed_threshold_changes_nothing() {
    let server = &alone(&[&ADMIN[..], &["--ip-quota", "off"]].concat());
    let before = policy(server, "user").await;
    for body in [
        "",
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
}
