//! Changes of thresholds, institutions and channels on several servers.

use serde_json::{Value, json};
use test_support::Redis;
use test_support::server_process::{Server, run};

use crate::{
    ALICE, BOB, GATEWAY, configured, delete, operator, policies_until, put, shown, sms, start,
    stop, violated,
};

#[tokio::test]
async fn lists_are_the_same_on_every_server() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--institution", "bank=9/1s", "--institution", "shop"];
    let servers = [(); 2].map(|()| start(&flags));
    assert_eq!(put(&servers[0], "/institutions/post", "1/1h").await.status, 201);
    assert_eq!(put(&servers[0], "/channels/news", "").await.status, 201);
    assert_eq!(delete(&servers[1], "/institutions/shop").await.status, 204);
    assert_eq!(delete(&servers[1], "/channels/marketing").await.status, 204);
    assert_eq!(delete(&servers[1], "/policies/institution/bank").await.status, 200);
    let version = shown(&servers[1], "/policies").await["version"].clone();
    policies_until(&servers[0], |policies| policies["version"] == version).await;
    servers.into_iter().for_each(|server| drop(stop(server)));

    // Also on one that starts again, whose flags still have what was removed.
    let again = start(&flags);
    let policies = shown(&again, "/policies").await;
    let names = |level: &str, list: &str| -> Vec<String> {
        policies[level][list].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names("institution", "institutions"), ["bank", "post"]);
    assert_eq!(names("channel", "channels"), ["news", "otp"]);
    assert_eq!(policies["institution"]["institutions"]["bank"]["configured"], "100/1s");
    assert_eq!(sms(&again, "shop", ALICE).await.status, 403);
    assert_eq!(sms(&again, "post", ALICE).await.status, 202);
    assert_eq!(violated(&sms(&again, "post", BOB).await), json!(["institution"]));
}

#[tokio::test]
async fn concurrent_changes_never_break_the_sum() {
    let redis = Redis::start().await;
    let [one, other] = [(); 2].map(|()| start(&["--redis", &redis.url(), "--global", "500/1s"]));
    let mut before = 0;
    for round in 0..20 {
        assert_eq!(put(&one, "/policies/institution/bank", "100/1s").await.status, 200);
        assert_eq!(put(&one, "/policies/institution/shop", "100/1s").await.status, 200);
        let raise = |server: &Server, name: &str| {
            let request = operator(server, "PUT", &format!("/policies/institution/{name}"));
            server.spawn_body(request, "300/1s")
        };
        let answers = [raise(&one, "bank"), raise(&other, "shop")];
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer.await.unwrap().status.as_u16());
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "round {round}");
        let version = redis.run::<u64>(&["HGET", "sms:policies", "version"]).await;
        assert!(version >= before + 3, "each change has a version: {before}, {version}");
        before = version;
    }
}

#[tokio::test]
async fn an_unreadable_policy_changes_nothing() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    put(&server, "/policies/channel", "33/1s").await;
    let set = ["HSET", "sms:policies", "channel", "many", "institution/Gone", "1/1s"];
    // As servers write them that know of no version of each change.
    let version = redis.run::<u64>(&["HGET", "sms:policies", "version"]).await + 1;
    let more = ["sender", "1/1s", "receiver", "7/60s", "version", &version.to_string()];
    redis.run::<()>(&[&set[..], &more].concat()).await;
    policies_until(&server, |policies| policies["receiver"]["configured"] == "7/60s").await;
    assert_eq!(configured(&server, "channel").await, "33/1s");
    // What this server does not understand is kept for others.
    put(&server, "/policies/receiver", "8/60s").await;
    let kept = redis.run::<String>(&["HGET", "sms:policies", "sender"]).await;
    assert!(kept.starts_with("1/1s"), "{kept}");
    let logs = stop(server);
    let warnings = logs.lines().filter(|line| line.contains("WARN") && line.contains("in Redis"));
    assert_eq!(warnings.count(), 3, "each once: {logs}");
}

#[tokio::test]
async fn changes_count_in_the_sum_of_every_server() {
    let redis = Redis::start().await;
    let url = redis.url();
    let [high, low] =
        ["900/1s", "300/1s"].map(|global| start(&["--redis", &url, "--global", global]));
    assert_eq!(put(&low, "/policies/institution/bank", "400/1s").await.status, 409);
    assert_eq!(put(&high, "/policies/institution/bank", "400/1s").await.status, 200);
    // The levels are the fleet's: the other server takes the policy over, and warns.
    let bank = |policies: &Value| policies["institution"]["institutions"]["bank"].clone();
    policies_until(&low, |policies| bank(policies)["configured"] == "400/1s").await;
    assert_eq!(put(&low, "/policies/institution/bank", "401/1s").await.status, 409);
    assert_eq!(put(&low, "/policies/institution/bank", "399/1s").await.status, 200, "it helps");
    assert!(stop(low).contains("500 a second = bank 400/1s + shop 100/1s"));

    let flags = ["--listen", "127.0.0.1:0", "--redis", &url, "--global", "300/1s"];
    let output = run(GATEWAY, &flags);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["499 a second = bank 399/1s + shop 100/1s", "--global 499/1s", "kept in Redis"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}
