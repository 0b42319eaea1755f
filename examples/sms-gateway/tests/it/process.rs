//! The gateway as a process: what prevents its start, logs, signals, clients that leave or stall.

use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::{Server, cannot_start, refuses, run};

use crate::{ALICE, GATEWAY, message, put, sms, spawn_sms, start, stop, until};

#[test]
fn a_failed_start_names_the_way_out() {
    cannot_start(GATEWAY);
    let cases: &[(&[&str], &str)] = &[
        (&["--global", "4294967295/1s"], "a token a nanosecond"),
        (
            &["--institution", "bank", "--institution", "bank=5/1s"],
            "--institution names bank twice",
        ),
        (&["--adapt", "everything"], "institution, channel, receiver"),
        (&["--alert-above", "101%"], "percentage"),
    ];
    refuses(GATEWAY, cases);
    let flags = ["--listen", "127.0.0.1:0", "--institution", "bank=400/1s", "--global", "399/1s"];
    let output = run(GATEWAY, &flags);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["399 a second", "400 a second = bank 400/1s", "--global 400/1s"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[tokio::test]
async fn logs_name_receivers_at_debug_only_and_no_texts() {
    for (level, named) in [("info", false), ("info,sms_gateway=debug", true)] {
        let server = Server::start_logging(GATEWAY, level, &[]);
        for _ in 0..4 {
            sms(&server, "bank", ALICE).await;
        }
        put(&server, "/downstream", r#"{"errors":"100%"}"#).await;
        sms(&server, "shop", "+15550000001").await;
        let logs = stop(server);
        for key in ["4917", "1555", "bank", "otp"] {
            assert_eq!(logs.contains(key), named, "{level} {key}: {logs}");
        }
        assert!(!logs.contains("Hello"), "{logs}");
    }
}

#[tokio::test]
async fn a_message_under_way_is_answered_before_the_stop() {
    let server = start(&["--receiver-limit", "1/1h", "--downstream-latency", "3s"]);
    let message = spawn_sms(&server, ALICE);
    until(async || server.get("/downstream").await.json()["under_way"] == 1).await;
    server.signal("INT");
    assert_eq!(message.await.unwrap().status, 202);
    let (status, _, printed) = server.stopped();
    assert_eq!((status.code(), printed), (Some(0), Vec::new()));
}

#[tokio::test]
async fn a_client_that_leaves_early_leaves_no_trace() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url(), "--downstream-errors", "100%"]);
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let body = message("bank", ALICE);
    let head = format!("POST /sms HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut client = RawClient::connect(&server).await;
    client.write(format!("{head}{body}").as_bytes()).await;
    let blocked =
        async || redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1");
    until(blocked).await;
    client.reset();
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    // The message is admitted, not taken by the downstream, and cancelled.
    until(async || server.get("/downstream").await.json()["window"]["failed"] == 1).await;
    until(async || redis.run::<Vec<String>>(&["KEYS", "sms:{*"]).await.is_empty()).await;
}

#[tokio::test]
async fn a_client_that_stalls_in_a_message_is_closed() {
    let server = start(&["--idle-timeout", "2s"]);
    let body = message("bank", ALICE);
    let head = format!("POST /sms HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let request = format!("{head}{body}");
    let mut stalled = Vec::new();
    for length in (0..request.len()).step_by(3) {
        let mut client = RawClient::connect(&server).await;
        client.write(&request.as_bytes()[..length]).await;
        stalled.push((length, client));
    }
    for (length, mut client) in stalled {
        let statuses: Vec<u16> =
            client.answers().await.iter().map(|answer| answer.status.as_u16()).collect();
        let expected: &[u16] = if length < head.len() { &[] } else { &[408] };
        assert_eq!(statuses, expected, "{length} bytes");
    }
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
}
