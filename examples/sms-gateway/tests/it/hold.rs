//! Messages that wait: callers that hang up, a server that stops, and a Redis that fails meanwhile.

use std::time::{Duration, Instant};

use serde_json::json;
use test_support::raw_client::RawClient;
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::{ALICE, message, put, shown, sms, spawn_sms, start, stop, violated};

async fn waiting_until(server: &Server, institution: &str, wanted: u64) {
    eventually("messages wait", async || {
        shown(server, "/refusals").await["institutions"][institution]["waiting"] == wanted
    })
    .await;
}

#[tokio::test]
async fn a_message_that_waits_is_sent_on_redis() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--hold", "20s", "--receiver-limit", "1/2s"];
    let server = start(&flags);
    let begun = Instant::now();
    let sent: Vec<_> = (0..3).map(|_| spawn_sms(&server, "bank", ALICE)).collect();
    for message in sent {
        assert_eq!(message.await.unwrap().status, 202);
    }
    assert!(begun.elapsed() >= Duration::from_secs(4), "each two seconds after the other");
}

#[tokio::test]
async fn a_caller_that_hangs_up_keeps_its_turn() {
    let server = start(&["--hold", "60s", "--receiver-limit", "1/1h"]);
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
    put(&server, "/policies/receiver", "1/5s").await;
    let body = message("bank", ALICE);
    let head = format!("POST /sms HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut client = RawClient::connect(&server).await;
    client.write(format!("{head}{body}").as_bytes()).await;
    waiting_until(&server, "bank", 1).await;
    client.reset();
    put(&server, "/policies/receiver", "2/1h").await;
    waiting_until(&server, "bank", 0).await;
    eventually("it was sent", async || {
        shown(&server, "/downstream").await["window"]["results"] == 2
    })
    .await;
    assert_eq!(violated(&sms(&server, "bank", ALICE).await), json!(["receiver"]));
}

#[tokio::test]
async fn a_server_that_stops_refuses_what_waits() {
    let server = start(&["--hold", "60s", "--receiver-limit", "1/50s"]);
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
    let waiting = spawn_sms(&server, "bank", ALICE);
    waiting_until(&server, "bank", 1).await;
    let logs = stop(server);
    let refused = waiting.await.unwrap();
    assert!(refused.problem(503).ends_with("#temporary-reduced-capacity"));
    assert_eq!(refused.retry_after(), 1);
    assert!(!logs.contains("cut off"), "{logs}");
}

#[tokio::test]
async fn an_outage_ends_the_wait_as_on_failure_says() {
    for (on_failure, status) in [("closed", 503), ("open", 202)] {
        let mut redis = Redis::start().await;
        let flags = ["--redis", &redis.url(), "--hold", "60s", "--receiver-limit", "1/50s"];
        let server = start(&[&flags[..], &["--on-failure", on_failure]].concat());
        assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
        let waiting = spawn_sms(&server, "bank", ALICE);
        waiting_until(&server, "bank", 1).await;
        redis.kill();
        let decided = waiting.await.unwrap();
        assert_eq!(decided.status, status, "{on_failure}: {decided:?}");
    }
}

/// Also of those that are not the first of their line. A place is free after fifty seconds.
#[tokio::test]
async fn an_outage_ends_every_wait_at_once() {
    for (on_failure, status) in [("closed", 503), ("open", 202)] {
        let mut redis = Redis::start().await;
        let url = redis.url();
        let flags = ["--redis", &url, "--hold", "60s", "--on-failure", on_failure];
        let limits = ["--institution", "bank=50/50s", "--receiver-limit", "99/1s"];
        let server = start(&[&flags[..], &limits, &["--global", "999/1s"]].concat());
        for _ in 0..50 {
            assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
        }
        let number = |index| format!("+49170123{index:04}");
        let waiting: Vec<_> =
            (0..50).map(|index| spawn_sms(&server, "bank", &number(index))).collect();
        waiting_until(&server, "bank", 50).await;
        redis.kill();
        let killed = Instant::now();
        for message in waiting {
            let decided = message.await.unwrap();
            assert_eq!(decided.status, status, "{on_failure}: {decided:?}");
        }
        assert!(killed.elapsed() < Duration::from_secs(25), "{:?}", killed.elapsed());
    }
}
