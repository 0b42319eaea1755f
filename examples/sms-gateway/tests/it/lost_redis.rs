//! A Redis that loses policies while servers know them: no change that was answered is lost.

use serde_json::Value;
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::{configured, delete, policies_until, put, shown, start, stop};

async fn field(redis: &Redis, name: &str) -> String {
    let value: Option<String> = redis.run(&["HGET", "sms:policies", name]).await;
    value.unwrap_or_default()
}

fn institutions(policies: &Value) -> Vec<&String> {
    policies["institution"]["institutions"].as_object().unwrap().keys().collect()
}

/// Stalls a server and empties its Redis. Another one starts that knows of no change.
async fn stall(redis: &Redis, server: &Server) -> Server {
    server.signal("STOP");
    redis.run::<()>(&["FLUSHALL"]).await;
    start(&["--redis", &redis.url()])
}

#[tokio::test]
async fn a_redis_that_forgets_gets_the_policies_again() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    put(&server, "/policies/receiver", "1/1h").await;
    redis.run::<()>(&["FLUSHALL"]).await;
    eventually("Redis has it again", async || field(&redis, "receiver").await.starts_with("1/1h"))
        .await;
    assert_eq!(configured(&server, "receiver").await, "1/1h");
    assert!(stop(server).contains("Redis had lost policies"));
}

#[tokio::test]
async fn changes_of_a_stalled_server_are_joined() {
    for changes in [3, 1] {
        let redis = Redis::start().await;
        let stalled = start(&["--redis", &redis.url()]);
        for number in 0..changes {
            put(&stalled, "/policies/channel", &format!("{}/1s", 100 + number)).await;
        }
        assert_eq!(delete(&stalled, "/institutions/shop").await.status, 204);
        let fresh = stall(&redis, &stalled).await;
        assert_eq!(put(&fresh, "/policies/receiver", "9/60s").await.status, 200);
        assert_eq!(put(&fresh, "/institutions/post", "1/1s").await.status, 201);
        stalled.signal("CONT");
        for server in [&stalled, &fresh] {
            policies_until(server, |policies| {
                policies["receiver"]["configured"] == "9/60s"
                    && policies["channel"]["configured"] == format!("{}/1s", 99 + changes)
                    && institutions(policies) == ["bank", "post"]
            })
            .await;
        }
        let logs = [stop(stalled), stop(fresh)].concat();
        assert!(!logs.contains("is replaced"), "no target was changed twice: {logs}");
    }
}

#[tokio::test]
async fn the_later_of_two_changes_holds() {
    let redis = Redis::start().await;
    let stalled = start(&["--redis", &redis.url()]);
    for policy in ["5/60s", "6/60s", "7/60s"] {
        put(&stalled, "/policies/receiver", policy).await;
    }
    let fresh = stall(&redis, &stalled).await;
    assert_eq!(put(&fresh, "/policies/receiver", "9/60s").await.status, 200);
    stalled.signal("CONT");
    policies_until(&stalled, |policies| policies["receiver"]["configured"] == "9/60s").await;
    assert_eq!(put(&stalled, "/policies/channel", "99/1s").await.status, 200);
    policies_until(&fresh, |policies| policies["channel"]["configured"] == "99/1s").await;
    assert_eq!(configured(&fresh, "receiver").await, "9/60s");
}

/// What a server sees whose change was older than one of a server that did not know of it.
#[tokio::test]
async fn a_change_that_loses_a_join_is_named() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    assert_eq!(put(&server, "/policies/receiver", "9/60s").await.status, 200);
    let version = shown(&server, "/policies").await["version"].as_u64().unwrap() + 9;
    let (later, version) = (format!("3/60s @{version}"), (version + 1).to_string());
    let fields = ["receiver", &later, "version", &version, "joined", &version];
    redis.run::<()>(&[&["HSET", "sms:policies"], &fields[..]].concat()).await;
    policies_until(&server, |policies| policies["receiver"]["configured"] == "3/60s").await;
    let logs = stop(server);
    let warnings: Vec<&str> = logs.lines().filter(|line| line.contains("is replaced")).collect();
    assert_eq!(warnings.len(), 1, "{logs}");
    for part in ["WARN", "receiver", "9/60s", "3/60s"] {
        assert!(warnings[0].contains(part), "{part}: {logs}");
    }
}
