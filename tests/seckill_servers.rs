//! The seckill example on more than one Redis server: a Cluster, and a master that Sentinels watch.

use std::time::Duration;

use test_support::Redis;
use test_support::server_process::Server;
use tokio::time::{Instant, sleep};

const PATIENT: [&str; 2] = ["--response-timeout", "10s"];

#[tokio::test]
async fn on_a_cluster_the_quota_and_the_stock_hold() {
    let cluster = test_support::Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let mut arguments = vec!["--stock", "iphone=3", "--ip-quota", "1000/60s"];
    arguments.extend(PATIENT);
    urls.iter().for_each(|url| arguments.extend(["--redis", url]));
    let servers = [Server::start("seckill", &arguments), Server::start("seckill", &arguments)];

    let mut sold = 0;
    for number in 0..8 {
        let answer = servers[number % 2].order("iphone", &format!("user-{number}")).await;
        assert!([201, 410, 409].contains(&answer.status.as_u16()), "{answer:?}");
        sold += usize::from(answer.status == 201);
    }
    assert_eq!(sold, 3);
    for number in 0..4 {
        assert_ne!(servers[number % 2].order("iphone", "user-0").await.status, 429);
    }
    let answer = servers[0].order("iphone", "user-0").await;
    assert_eq!(answer.status, 429, "the sixth of one user, whichever server");
    assert!(answer.retry_after() <= 60);
}

#[tokio::test]
async fn behind_sentinels_the_shop_goes_on_with_the_new_master() {
    let mut watched = test_support::Sentinels::start().await;
    let urls = watched.urls().join(",");
    let arguments =
        ["--stock", "iphone=100", "--redis", &urls, "--sentinel-master", test_support::MASTER];
    let server = Server::start("seckill", &[&arguments[..], &PATIENT[..]].concat());
    assert_eq!(server.order("iphone", "alice").await.status, 201);

    watched.master.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        let answer = server.order("iphone", &format!("user-{number}")).await;
        // The stock can't be asked without a master; the windows can.
        assert!([201, 503].contains(&answer.status.as_u16()), "{answer:?}");
        if answer.status == 201 {
            break;
        }
        assert!(Instant::now() < deadline, "no order after the failover");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.order("iphone", "alice").await.status, 409, "the order was replicated");
}

#[tokio::test]
async fn a_failure_policy_and_servers_that_make_no_sense_are_refused() {
    for (arguments, part) in [
        (vec!["--on-failure", "sometimes"], "\"sometimes\" is not a failure policy"),
        (vec!["--on-failure", "local:0"], "\"0\" is not a number of instances"),
        (vec!["--sentinel-master", "shop"], "--redis"),
    ] {
        let output = test_support::server_process::run("seckill", &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(part), "{stderr}");
    }
}
