//! The gateway as a process: what prevents its start, logs, signals, clients that leave or stall.

use test_support::raw_client::RawClient;
use test_support::server_process::{Server, cannot_start, refuses, run};
use test_support::{Redis, eventually};

use crate::{ADMIN, ALICE, GATEWAY, message, put, shown, sms, start, stop};

/// Returns the head and the body of a request that sends a message.
fn raw_message() -> [String; 2] {
    let body = message("bank", ALICE);
    [format!("POST /sms HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len()), body]
}

#[test]
fn a_failed_start_names_the_way_out() {
    cannot_start(GATEWAY);
    let cases: &[(&[&str], &str)] = &[
        (&["--global", "4294967295/1s"], "a token a nanosecond"),
        (
            &["--institution", "bank", "--institution", "bank=5/1s"],
            "--institution names bank twice",
        ),
        (&["--channel", "otp=1/1s", "--channel", "otp"], "--channel names otp twice"),
        (&["--channel", "OTP"], "a-z"),
        (&["--destination", "49"], "such as +49"),
        (&["--servers", "0"], "--servers"),
        (&["--servers", "2"], "--redis"),
        (&["--on-failure", "closed"], "--redis"),
        (&["--hold", "61s"], "longer than 60s"),
        (&["--hold-messages", "8192"], "must be below --max-connections"),
        (&["--admin", "0.0.0.0:1"], "other machines could reach it"),
        (&["--adapt", "everything"], "institution, channel, destination, receiver"),
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
async fn logs_name_receivers_at_debug_and_no_text() {
    for (level, named) in [("info", false), ("info,sms_gateway=debug", true)] {
        let server = Server::start_logging(GATEWAY, level, &ADMIN);
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
async fn a_client_that_leaves_early_leaves_no_trace() {
    let redis = Redis::start().await;
    // The bucket has a token for the first message only.
    let bucket = ["--institution", "bank=9/1h", "--servers", "9", "--global", "1/1h"];
    let server = start(&[&bucket[..], &["--redis", &redis.url()]].concat());
    assert_eq!(sms(&server, "bank", "+15550000001").await.status, 202);
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let mut client = RawClient::connect(&server).await;
    client.write(raw_message().concat().as_bytes()).await;
    let blocked =
        async || redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1");
    eventually("a command is held back", blocked).await;
    client.reset();
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    // The message is admitted by the levels, not by the bucket, and cancelled.
    eventually("it was refused", async || {
        shown(&server, "/refusals").await["institutions"]["bank"]["total"]["global"] == 1
    })
    .await;
    let bank = ["ZCARD", "sms:{=bank}:institution:1h"];
    eventually("no trace is left", async || redis.run::<usize>(&bank).await == 1).await;
}

#[tokio::test]
async fn a_client_that_stalls_in_a_message_is_closed() {
    let server = start(&["--idle-timeout", "2s", "--io-timeout", "2s"]);
    let [head, body] = raw_message();
    let request = format!("{head}{body}");
    let mut stalled = Vec::new();
    for length in (0..request.len()).step_by(3) {
        let mut client = RawClient::connect(&server).await;
        client.write(&request.as_bytes()[..length]).await;
        stalled.push((length, client));
    }
    for (length, mut client) in stalled {
        let statuses: Vec<u16> =
            client.responses().await.iter().map(|answer| answer.status.as_u16()).collect();
        let expected: &[u16] = if length < head.len() { &[] } else { &[408] };
        assert_eq!(statuses, expected, "{length} bytes");
    }
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
}

#[tokio::test]
async fn a_flood_in_an_outage_is_one_line_a_second() {
    let redis = Redis::start().await;
    let flags = ["--on-failure", "open", "--institution-limit", "1/60s", "--global", "2/60s"];
    let server = start(&[&flags[..], &["--redis", &redis.url()]].concat());
    drop(redis);
    for number in 0..200 {
        sms(&server, "bank", &format!("+4917012{number:05}")).await;
    }
    let logs = stop(server);
    let lines = logs.lines().filter(|line| line.contains("stays counted")).count();
    assert!((1..20).contains(&lines), "{lines} lines for 200 messages");
}
