//! The SMS gateway on more than one Redis server: a Cluster, and a master that Sentinels watch.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "support/sms.rs"]
mod sms;

use serde_json::json;
use sms::{policies_until, put, sent_by_both, sms, start, until, violated};
use test_support::Redis;

const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";

#[tokio::test]
async fn on_a_cluster_the_levels_hold_and_policies_are_shared() {
    let cluster = test_support::Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let mut flags = vec!["--receiver-limit", "7/1h"];
    urls.iter().for_each(|url| flags.extend(["--redis", url]));
    let servers = [(); 2].map(|()| start(&flags));

    assert_eq!(sent_by_both(&servers, 40, ALICE).await, 7);

    assert_eq!(put(&servers[0], "/policies/receiver", "8/1h").await.status, 200);
    assert_eq!(put(&servers[1], "/policies/institution/bank", "7/1h").await.status, 200);
    for server in &servers {
        policies_until(server, |policies| policies["version"] == 2).await;
    }
    let denied = sms(&servers[0], "bank", "otp", ALICE).await;
    assert_eq!(
        violated(&denied),
        json!(["institution"]),
        "the others have given their places back"
    );
    assert_eq!(sms(&servers[0], "shop", "otp", ALICE).await.status, 202);
    violated(&sms(&servers[1], "shop", "otp", ALICE).await);

    drop(servers);
    let restarted = start(&flags);
    let policies = restarted.get("/policies").await.json();
    assert_eq!(
        (&policies["version"], &policies["receiver"]["configured"]),
        (&2.into(), &"8/1h".into())
    );
    violated(&sms(&restarted, "shop", "otp", ALICE).await);
}

#[tokio::test]
async fn behind_sentinels_messages_and_policies_outlive_the_master() {
    let mut watched = test_support::Sentinels::start().await;
    let urls = watched.urls().join(",");
    let flags = ["--redis", &urls, "--sentinel-master", test_support::MASTER];
    let server = start(&flags);
    assert_eq!(put(&server, "/policies/receiver", "2/1h").await.status, 200);
    assert_eq!(sms(&server, "bank", "otp", ALICE).await.status, 202);
    let window = format!("sms:{{={ALICE}}}:receiver");
    let replicated = async |key: &str| watched.replica.run::<u32>(&["EXISTS", key]).await == 1;
    until(async || replicated("sms:policies").await && replicated(&window).await).await;

    watched.master.kill();
    assert_eq!(sms(&server, "bank", "otp", BOB).await.status, 202, "the failure policy decides");
    until(async || put(&server, "/policies/channel", "9/1h").await.status == 200).await;
    policies_until(&server, |policies| policies["stale"] == false).await;
    assert_eq!(watched.replica.run::<u32>(&["HGET", "sms:policies", "version"]).await, 2);

    let other = start(&flags);
    let policies = other.get("/policies").await.json();
    assert_eq!(policies["receiver"]["configured"], "2/1h", "it was replicated");
    assert_eq!(policies["channel"]["configured"], "9/1h");
    assert_eq!(sms(&other, "bank", "otp", ALICE).await.status, 202);
    assert_eq!(violated(&sms(&other, "bank", "otp", ALICE).await), json!(["receiver"]));
}
