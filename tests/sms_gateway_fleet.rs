//! What several SMS gateways promise together, and what outlives them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "support/sms.rs"]
mod sms;

use serde_json::{Value, json};
use sms::{policies_until, put, sent_by_both, sms, start, until, violated};
use test_support::Redis;
use test_support::Redis;
use test_support::server_process::{Server, run};

const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";

/// Asks a server to stop, and returns what it logged.
fn stop(server: Server) -> String {
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success(), "{logs}");
    logs
}

async fn configured(server: &Server, level: &str) -> Value {
    server.get("/policies").await.json()[level]["configured"].clone()
}

#[tokio::test]
async fn two_servers_hold_a_receiver_to_one_policy() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--receiver-limit", "7/1h"];
    let servers = [(); 2].map(|()| start(&flags));
    assert_eq!(sent_by_both(&servers, 60, ALICE).await, 7);
    for window in ["{=+491701234567}:receiver", "{=bank}:institution", "{=otp}:channel"] {
        assert_eq!(redis.run::<usize>(&["ZCARD", &format!("sms:{window}")]).await, 7, "{window}");
    }
}

#[tokio::test]
async fn a_change_on_one_server_holds_on_the_other_within_a_second() {
    let redis = Redis::start().await;
    let [one, other] = [(); 2].map(|()| start(&["--redis", &redis.url()]));
    for policy in ["1/1h", "5/1h", "3/1h"] {
        assert_eq!(put(&one, "/policies/receiver", policy).await.status, 200);
        let took = policies_until(&other, |it| it["receiver"]["configured"] == policy).await;
        println!("{policy} held on the other server after {took:?}");
    }
    put(&other, "/policies/institution/shop", "7/1h").await;
    policies_until(&one, |it| it["institution"]["institutions"]["shop"]["effective"] == "7/1h")
        .await;
    for _ in 0..3 {
        assert_eq!(sms(&other, "bank", "otp", ALICE).await.status, 202);
    }
    violated(&sms(&other, "bank", "otp", ALICE).await);
}

#[tokio::test]
async fn changes_outlive_every_server_and_every_key_has_its_time() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--prefix", "gate", "--receiver-limit", "2/60s"];
    let servers = [(); 2].map(|()| start(&flags));
    put(&servers[0], "/policies/receiver", "1/1h").await;
    put(&servers[1], "/policies/institution/bank", "50/1s").await;
    assert_eq!(sms(&servers[0], "bank", "otp", ALICE).await.status, 202);
    servers.into_iter().for_each(|server| drop(stop(server)));

    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(keys.contains(&"gate:policies".to_owned()), "{keys:?}");
    for key in &keys {
        let ttl: i64 = redis.run(&["TTL", key]).await;
        let month = 30 * 24 * 3600;
        let expected = if key == "gate:policies" { month - 600..=month } else { 1..=3601 };
        assert!(expected.contains(&ttl), "{key} has {ttl}");
    }

    // The first of the servers to come renews it.
    redis.run::<()>(&["EXPIRE", "gate:policies", "100"]).await;
    let servers = [(); 2].map(|()| start(&flags));
    assert!(redis.run::<i64>(&["TTL", "gate:policies"]).await > 100);
    for server in &servers {
        let policies = server.get("/policies").await.json();
        assert_eq!(policies["version"], 2);
        assert_eq!(policies["receiver"]["configured"], "1/1h", "not what the flag says");
        assert_eq!(policies["institution"]["institutions"]["bank"]["configured"], "50/1s");
        assert_eq!(policies["institution"]["institutions"]["shop"]["configured"], "100/1s");
    }
    violated(&sms(&servers[1], "bank", "otp", ALICE).await);
}

#[tokio::test]
async fn changes_made_at_once_on_two_servers_never_break_the_sum() {
    let redis = Redis::start().await;
    let [one, other] = [(); 2].map(|()| start(&["--redis", &redis.url(), "--global", "500/1s"]));
    for round in 0..20 {
        assert_eq!(put(&one, "/policies/institution/bank", "100/1s").await.status, 200);
        assert_eq!(put(&one, "/policies/institution/shop", "100/1s").await.status, 200);
        let raise = |server: &Server, name: &str| {
            let request = server.request("PUT", &format!("/policies/institution/{name}"));
            server.spawn_body(request, "300/1s")
        };
        let answers = [raise(&one, "bank"), raise(&other, "shop")];
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer.await.unwrap().status.as_u16());
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "round {round}");
    }
    let version = one.get("/policies").await.json()["version"].as_u64().unwrap();
    assert_eq!(version, 60, "each change has one version");
}

#[tokio::test]
async fn only_newer_policies_replace_those_there_are() {
    let redis = Redis::start().await;
    let script = include_str!("../examples/sms_gateway/put_policies.lua");
    let put = async |version: &str, fields: &[&str]| {
        let call = ["EVAL", script, "1", "p", version, "60000"];
        redis.run::<u32>(&[&call[..], fields].concat()).await
    };
    let receiver = async || redis.run::<Option<String>>(&["HGET", "p", "receiver"]).await;
    assert_eq!(put("2", &["receiver", "1/1s", "channel", "9/1s"]).await, 1);
    assert_eq!(put("2", &["receiver", "2/1s"]).await, 0, "another server was faster");
    assert_eq!(put("1", &["receiver", "3/1s"]).await, 0);
    assert_eq!(receiver().await.as_deref(), Some("1/1s"));
    assert_eq!(put("3", &["receiver", "4/1s"]).await, 1);
    assert_eq!(receiver().await.as_deref(), Some("4/1s"));
    assert_eq!(redis.run::<usize>(&["HLEN", "p"]).await, 2, "replaced as a whole");
    assert!((1..=60).contains(&redis.run::<i64>(&["TTL", "p"]).await));
    redis.run::<()>(&["HSET", "p", "version", "many"]).await;
    assert_eq!(put("1", &[]).await, 1, "what is no version is none");
}

#[tokio::test]
async fn a_policy_that_makes_no_sense_is_ignored_and_the_old_one_stays() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    put(&server, "/policies/channel", "33/1s").await;
    put(&server, "/policies/institution/bank", "44/1s").await;
    redis
        .run::<()>(
            &[
                &["HSET", "sms:policies", "channel", "many", "institution/bank", "0/1s"][..],
                &[
                    "institution/gone",
                    "1/1s",
                    "sender",
                    "1/1s",
                    "receiver",
                    "7/60s",
                    "version",
                    "9",
                ],
            ]
            .concat(),
        )
        .await;
    policies_until(&server, |policies| policies["receiver"]["configured"] == "7/60s").await;
    let policies = server.get("/policies").await.json();
    assert_eq!(
        (&policies["channel"]["configured"], &policies["version"]),
        (&"33/1s".into(), &9.into())
    );
    assert_eq!(policies["institution"]["institutions"]["bank"]["configured"], "44/1s");
    // What this server makes no sense of is kept for others.
    put(&server, "/policies/receiver", "8/60s").await;
    assert_eq!(redis.run::<String>(&["HGET", "sms:policies", "sender"]).await, "1/1s");
    let logs = stop(server);
    let warnings = logs.lines().filter(|line| line.contains("WARN") && line.contains("in Redis"));
    assert_eq!(warnings.count(), 4, "each once: {logs}");
}

#[tokio::test]
async fn a_redis_that_forgets_is_told_again() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    put(&server, "/policies/receiver", "1/1h").await;
    redis.run::<()>(&["FLUSHALL"]).await;
    let restored =
        async || redis.run::<Option<String>>(&["HGET", "sms:policies", "receiver"]).await;
    until(async || restored().await.is_some()).await;
    assert_eq!(restored().await.as_deref(), Some("1/1h"));
    assert_eq!(redis.run::<u32>(&["HGET", "sms:policies", "version"]).await, 1);
    assert_eq!(configured(&server, "receiver").await, "1/1h");
    assert!(stop(server).contains("it has them again"));
}

#[tokio::test]
async fn without_its_redis_a_server_goes_on_and_changes_nothing() {
    let mut redis = Redis::start().await;
    let local = start(&["--redis", &redis.url(), "--receiver-limit", "2/1h"]);
    let closed = start(&["--redis", &redis.url(), "--on-failure", "closed"]);
    put(&local, "/policies/receiver", "3/1h").await;
    assert_eq!(sms(&local, "bank", "otp", ALICE).await.status, 202);
    policies_until(&closed, |policies| policies["version"] == 1).await;
    redis.kill();

    for _ in 0..2 {
        assert_eq!(sms(&local, "bank", "otp", ALICE).await.status, 202);
    }
    assert_eq!(violated(&sms(&local, "bank", "otp", ALICE).await), json!(["receiver"]));
    let refused = sms(&closed, "bank", "otp", BOB).await;
    assert!(refused.problem(503).ends_with("#temporary-reduced-capacity"));
    refused.retry_after();
    let refused = put(&local, "/policies/receiver", "9/1h").await;
    assert!(refused.problem(503).ends_with("#temporary-reduced-capacity"));
    refused.retry_after();
    policies_until(&local, |policies| policies["stale"] == true).await;
    assert_eq!(configured(&local, "receiver").await, "3/1h");

    redis.start_again();
    redis.answers().await;
    until(async || put(&local, "/policies/receiver", "9/1h").await.status == 200).await;
    policies_until(&closed, |policies| policies["receiver"]["configured"] == "9/1h").await;
    policies_until(&local, |policies| policies["stale"] == false).await;
    let logs = stop(local);
    assert!(logs.contains("those known hold") && logs.contains("from Redis again"), "{logs}");
    assert!(!logs.contains("4917"), "{logs}");
}

#[tokio::test]
async fn what_was_changed_counts_in_the_sum_at_the_start_and_elsewhere() {
    let redis = Redis::start().await;
    let url = redis.url();
    let [high, low] =
        ["900/1s", "300/1s"].map(|global| start(&["--redis", &url, "--global", global]));
    assert_eq!(put(&low, "/policies/institution/bank", "400/1s").await.status, 409);
    assert_eq!(put(&high, "/policies/institution/bank", "400/1s").await.status, 200);
    // The levels are the fleet's: the other server takes the policy over, and says what is wrong.
    policies_until(&low, |policies| policies["version"] == 1).await;
    assert_eq!(put(&low, "/policies/institution/bank", "401/1s").await.status, 409);
    assert_eq!(put(&low, "/policies/institution/bank", "399/1s").await.status, 200, "it helps");
    assert!(stop(low).contains("500 a second = bank 400/1s + shop 100/1s"));

    let flags = ["--listen", "127.0.0.1:0", "--redis", &url, "--global", "300/1s"];
    let output = run("sms_gateway", &flags);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["499 a second = bank 399/1s + shop 100/1s", "--global 499/1s", "kept in Redis"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    stop(high);
}
