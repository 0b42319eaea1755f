//! The Redis user of SECURITY.md has the rights for all that the crate does, and no others. And TLS behind Sentinels, and on a
//! Cluster: the servers behind get no plain text either.

use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::tls::{self, Certificates};

use crate::*;

const MINUTE: Duration = Duration::from_secs(60);

fn policy() -> Policy {
    Policy::new("user").quota(Quota::per_minute(1)).penalty("1/10m:1m".parse().unwrap())
}

/// A failure policy that decides would hide that Redis refuses.
fn limiter(policy: Policy, store: &RedisStore) -> Limiter {
    Limiter::new(policy, store.clone()).failure_policy(FailurePolicy::Closed)
}

/// The connection works, so nothing else would show that each server decides alone.
#[tokio::test]
async fn another_prefix_than_the_users_is_warned_of() {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::DoAll).await;
    let warnings = Warnings::listen();
    let limiter = Limiter::new(Quota::per_minute(1_000_000), patient().connect(url).await.unwrap());
    eventually("it is warned of", async || {
        // One log, of which Redis refuses to be told after the first time.
        assert!(limiter.check("everybody").await.unwrap().is_admitted());
        warnings.lines().iter().any(|line| line.contains("NOPERM"))
    })
    .await;
    assert_eq!(warnings.lines().len(), 1, "one a second: {:?}", warnings.lines());
}

#[tokio::test]
async fn on_a_cluster_and_nothing_else() {
    let cluster = Cluster::start().await;
    let mut urls = Vec::new();
    for node in &cluster.nodes {
        urls.push(make_user(node, May::DoAllOnACluster).await);
    }
    let theirs = ::redis::Client::open(urls[0].clone()).unwrap();
    let servers = RedisServers::cluster(urls).unwrap();
    // All that it can do, but for a list of bans.
    let store = patient().prefix("limiter").connect(servers).await.unwrap();
    let user = limiter(policy(), &store);
    assert!(user.check("alice").await.unwrap().is_admitted());
    assert!(retry_after(&user, "alice").await > Duration::ZERO);
    user.reset("alice").await.unwrap();
    assert_eq!(user.peek("alice").await.unwrap().remaining(), 1, "the log is empty");
    let bans = Bans::new(policy(), store.clone());
    assert!(bans.get("alice").await.unwrap().is_some(), "the one strike was a ban");
    assert!(bans.lift("alice").await.unwrap());
    bans.impose("bob", MINUTE, "spam").await.unwrap();
    let carol = "limiter:{=carol}:user:1m";
    cluster.begin_to_move(carol, Cluster::next(carol)).await;
    let plain = limiter(Quota::per_minute(1).into(), &store);
    assert!(plain.check("carol").await.unwrap().is_admitted());
    for node in &cluster.nodes {
        nothing_was_refused(node).await;
    }
    let mut theirs = theirs.get_multiplexed_async_connection().await.unwrap();
    for forbidden in
        [&["INCR", "limiter:x"][..], &["FLUSHALL"], &["ZCARD", "other"], &["CLUSTER", "RESET"]]
    {
        let mut command = ::redis::cmd(forbidden[0]);
        let refused = command.arg(&forbidden[1..]).exec_async(&mut theirs).await.unwrap_err();
        assert_eq!(refused.code(), Some("NOPERM"), "{forbidden:?}");
    }
}

#[tokio::test]
async fn master_named_by_sentinels_gets_tls() {
    let (master, files) = (Redis::start().await, Certificates::make());
    // The Sentinel knows no TLS, takes the master for down, and names it all the same.
    let sentinel = Sentinel::start(tls::in_front_of(master.port(), &files).await).await;
    let port = tls::in_front_of(sentinel.server.port(), &files).await;
    let servers = RedisServers::sentinel([format!("rediss://127.0.0.1:{port}")], MASTER).unwrap();
    let store = patient().connect(files.of_clients(servers)).await.unwrap();
    assert!(limiter(policy(), &store).check("alice").await.unwrap().is_admitted());
}

/// Each node gets the credentials of the first one, and TLS.
#[tokio::test]
async fn nodes_of_a_cluster_get_tls() {
    let mut cluster = Cluster::start().await;
    let files = Certificates::make();
    let mut urls = Vec::new();
    for number in 0..cluster.nodes.len() {
        let port = tls::in_front_of(cluster.nodes[number].port(), &files).await;
        cluster.announce(number, port).await;
        let node = &cluster.nodes[number];
        let url = make_user(node, May::DoAllOnACluster).await.replace("redis://", "rediss://");
        urls.push(url.replace(&node.port().to_string(), &port.to_string()));
    }
    let servers = files.of_clients(RedisServers::cluster(&urls[..1]).unwrap());
    let store = patient().prefix("limiter").connect(servers).await.unwrap();
    let limiter = limiter(policy(), &store);
    for user in 0..20 {
        assert!(limiter.check(user.to_string()).await.unwrap().is_admitted());
    }
}
