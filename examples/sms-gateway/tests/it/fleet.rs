//! Several gateways, what outlives them, and a Redis that fails or is more than one server.

use serde_json::{Value, json};
use test_support::{Cluster, MASTER, Redis, Sentinels, eventually};
use tower_sliding_window::RedisStore;
use tower_sliding_window::store::RedisServers;

use crate::{
    ALICE, BOB, configured, policies_until, put, sent_by_both, shown, sms, start, stop, violated,
};

#[tokio::test]
async fn two_servers_hold_a_receiver_to_one_policy() {
    let redis = Redis::start().await;
    let hour = ["--institution-limit", "99/1h", "--channel-limit", "99/1h"];
    let url = redis.url();
    let flags = [&["--redis", &url, "--receiver-limit", "7/1h"][..], &hour].concat();
    let servers = [(); 2].map(|()| start(&flags));
    assert_eq!(sent_by_both(&servers, 60, ALICE).await, 7);
    for log in ["{=+491701234567}:receiver:1h", "{=bank}:institution:1h", "{=otp}:channel:1h"] {
        assert_eq!(redis.run::<usize>(&["ZCARD", &format!("sms:{log}")]).await, 7, "{log}");
    }
}

#[tokio::test]
async fn change_holds_on_every_server_and_restart() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--prefix", "gate", "--receiver-limit", "2/60s"];
    let servers = [(); 2].map(|()| start(&flags));
    for policy in ["3/1h", "1/1h"] {
        assert_eq!(put(&servers[0], "/policies/receiver", policy).await.status, 200);
        policies_until(&servers[1], |it| it["receiver"]["configured"] == policy).await;
    }
    put(&servers[1], "/policies/institution/bank", "50/1s").await;
    assert_eq!(sms(&servers[1], "bank", ALICE).await.status, 202);
    violated(&sms(&servers[1], "bank", ALICE).await);
    servers.into_iter().for_each(|server| drop(stop(server)));

    for key in redis.run::<Vec<String>>(&["KEYS", "*"]).await {
        let ttl: i64 = redis.run(&["TTL", &key]).await;
        let (day, month) = (24 * 3600, 30 * 24 * 3600);
        let expected = match &*key {
            "gate:policies" => month - 600..=month,
            "gate:mark" => day - 600..=day,
            _ => 1..=3601,
        };
        assert!(expected.contains(&ttl), "{key} has {ttl}");
    }
    redis.run::<()>(&["EXPIRE", "gate:policies", "100"]).await;
    let again = start(&flags);
    assert!(redis.run::<i64>(&["TTL", "gate:policies"]).await > 100, "the server renews it");
    let policies = shown(&again, "/policies").await;
    assert_eq!(policies["receiver"]["configured"], "1/1h");
    assert_eq!(policies["institution"]["institutions"]["bank"]["configured"], "50/1s");
    violated(&sms(&again, "bank", ALICE).await);
}

#[tokio::test]
async fn a_server_outlives_its_redis_and_takes_it_back() {
    let mut redis = Redis::start().await;
    let local = start(&["--redis", &redis.url(), "--receiver-limit", "2/1h"]);
    let closed = start(&["--redis", &redis.url(), "--on-failure", "closed"]);
    put(&local, "/policies/receiver", "3/1h").await;
    assert_eq!(sms(&local, "bank", ALICE).await.status, 202);
    policies_until(&closed, |policies| policies["receiver"]["configured"] == "3/1h").await;
    redis.kill();

    for _ in 0..2 {
        assert_eq!(sms(&local, "bank", ALICE).await.status, 202);
    }
    assert_eq!(violated(&sms(&local, "bank", ALICE).await), json!(["receiver"]));
    for refused in
        [sms(&closed, "bank", BOB).await, put(&local, "/policies/receiver", "9/1h").await]
    {
        assert!(refused.problem(503).ends_with("#temporary-reduced-capacity"));
        refused.retry_after();
    }
    policies_until(&local, |policies| policies["stale"] == true).await;
    assert_eq!(configured(&local, "receiver").await, "3/1h");

    redis.start_again();
    redis.ready().await;
    eventually("it comes about", async || {
        put(&local, "/policies/receiver", "9/1h").await.status == 200
    })
    .await;
    policies_until(&closed, |policies| policies["receiver"]["configured"] == "9/1h").await;
    policies_until(&local, |policies| policies["stale"] == false).await;
    let logs = stop(local);
    assert!(logs.contains("those known hold") && logs.contains("from Redis again"), "{logs}");
    assert!(!logs.contains("4917"), "{logs}");
}

#[tokio::test]
async fn on_a_cluster_levels_and_policies_hold() {
    let cluster = Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let mut flags = vec!["--receiver-limit", "7/1h", "--institution-limit", "99/1h"];
    urls.iter().for_each(|url| flags.extend(["--redis", url]));
    let servers = [(); 2].map(|()| start(&flags));
    assert_eq!(sent_by_both(&servers, 40, ALICE).await, 7);

    assert_eq!(put(&servers[0], "/policies/receiver", "8/1h").await.status, 200);
    assert_eq!(put(&servers[1], "/policies/institution/bank", "7/1h").await.status, 200);
    let bank = |policies: &Value| policies["institution"]["institutions"]["bank"].clone();
    for server in &servers {
        policies_until(server, |it| bank(it)["configured"] == "7/1h").await;
        assert_eq!(configured(server, "receiver").await, "8/1h");
    }
    let denied = sms(&servers[0], "bank", ALICE).await;
    assert_eq!(violated(&denied), json!(["institution"]), "the others are rolled back");
    assert_eq!(sms(&servers[0], "shop", ALICE).await.status, 202);
    violated(&sms(&servers[1], "shop", ALICE).await);
}

#[tokio::test]
async fn messages_and_policies_outlive_a_master() {
    let mut watched = Sentinels::start().await;
    let urls = watched.urls().join(",");
    let flags = ["--redis", &urls, "--sentinel-master", MASTER];
    let server = start(&flags);
    assert_eq!(put(&server, "/policies/receiver", "2/1h").await.status, 200);
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
    let log = format!("sms:{{={ALICE}}}:receiver:1h");
    let replicated = async |key: &str| watched.replica.run::<u32>(&["EXISTS", key]).await == 1;
    eventually("it comes about", async || {
        replicated("sms:policies").await && replicated(&log).await
    })
    .await;

    watched.master.kill();
    assert_eq!(sms(&server, "bank", BOB).await.status, 202, "the failure policy decides");
    eventually("it comes about", async || {
        put(&server, "/policies/channel", "9/1h").await.status == 200
    })
    .await;
    policies_until(&server, |policies| policies["stale"] == false).await;
    // A server does not start while the Sentinels have no master to name.
    let has_master = async || {
        let servers = RedisServers::sentinel(watched.urls(), MASTER).unwrap();
        RedisStore::connect(servers).await.is_ok()
    };
    eventually("a master is named", has_master).await;

    let other = start(&flags);
    assert_eq!(configured(&other, "receiver").await, "2/1h", "it was replicated");
    assert_eq!(configured(&other, "channel").await, "9/1h");
    assert_eq!(sms(&other, "bank", ALICE).await.status, 202);
    assert_eq!(violated(&sms(&other, "bank", ALICE).await), json!(["receiver"]));
}
