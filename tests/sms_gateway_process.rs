//! The SMS gateway as a process: flags, errors at the start, logs, signals.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "support/sms.rs"]
mod sms;

use std::time::{Duration, Instant};

use sms::{message, put, sms, spawn_sms, start, until};
use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::{Server, run};

const ALICE: &str = "+491701234567";

#[test]
fn a_wrong_flag_exits_with_2_and_names_the_part() {
    let cases: &[(&[&str], &str)] = &[
        (&["--global", "5"], "LIMIT/WINDOW"),
        (&["--global", "5/1s,9/1m"], "the window \"1s,9/1m\""),
        (&["--global", "4294967295/1s"], "a token a nanosecond"),
        (&["--institution", "Bank"], "a-z 0-9"),
        (&["--institution", "bank=5"], "LIMIT/WINDOW"),
        (
            &["--institution", "bank", "--institution", "bank=5/1s"],
            "--institution names bank twice",
        ),
        (&["--institution-limit", "0/60s"], "the limit is zero"),
        (&["--channel-limit", "2/1s,5/sixty"], "quota number 2: the window \"sixty\""),
        (&["--receiver-limit", "many/60s"], "the limit \"many\""),
        (&["--prefix", "a{b}"], "a prefix is"),
        (&["--listen", "3000"], "--listen"),
        (&["--on-failure", "sometimes"], "\"sometimes\" is not a failure policy"),
        (&["--on-failure", "local:0"], "\"0\" is not a number of instances"),
        (&["--sentinel-master", "sms"], "--redis"),
        (&["--response-timeout", "soon"], "length of time"),
        (&["--idle-timeout", "0s"], "it is zero"),
        (&["--downstream-latency", "slow"], "length of time"),
        (&["--downstream-errors", "0.3"], "percentage from 0% to 100%"),
        (&["--adapt", "everything"], "institution, channel, receiver"),
        (&["--adapt-floor", "101%"], "percentage"),
        (&["--adapt-window", "99ms"], "shorter than 100ms"),
        (&["--target-errors", "many"], "--target-errors"),
        (&["--target-latency", "9000h"], "longer than a year"),
        (&["--alert-above", "20"], "percentage"),
        (&["--alert-window", "0s"], "shorter than 100ms"),
        (&["--alert-least", "few"], "--alert-least"),
        (&["--institutions", "bank"], "--institution"),
    ];
    test_support::server_process::refuses("sms_gateway", cases);
}

#[test]
fn help_names_every_flag_and_a_first_request() {
    let output = run("sms_gateway", &["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in [
        "--listen",
        "--redis",
        "--sentinel-master",
        "--response-timeout",
        "--on-failure",
        "[default: local]",
        "--idle-timeout",
        "SMS_GATEWAY_REDIS",
        "--prefix",
        "--global",
        "--institution ",
        "--institution-limit",
        "--channel-limit",
        "--receiver-limit",
        "--downstream-latency",
        "--downstream-errors",
        "--adapt ",
        "--adapt-floor",
        "--adapt-window",
        "--target-latency",
        "--target-errors",
        "--alert-above",
        "--alert-window",
        "--alert-least",
        "[default: bank shop]",
        "2/60s,10/1h",
        "curl",
    ] {
        assert!(help.contains(part), "{part} is missing: {help}");
    }
}

#[test]
fn a_global_rate_below_the_sum_of_the_levels_prevents_the_start_and_shows_the_sum() {
    let institutions = ["--institution", "bank=400/1s", "--institution", "shop"];
    for (global, limit, parts) in [
        (
            "499/1s",
            "100/1s",
            ["that is 499 a second", "500 a second = bank 400/1s + shop 100/1s", "--global 500/1s"],
        ),
        (
            "24000/60s",
            "9/1s,30/60s",
            [
                "that is 400 a second",
                "400.5 a second = bank 400/1s + shop 9/1s,30/60s",
                "--global 401/1s",
            ],
        ),
    ] {
        let flags = ["--listen", "127.0.0.1:0", "--global", global, "--institution-limit", limit];
        let output = run("sms_gateway", &[&institutions[..], &flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    }
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_password() {
    test_support::server_process::cannot_start("sms_gateway");
}

#[tokio::test]
async fn a_bucket_that_is_too_small_for_a_burst_is_warned_of() {
    for (global, warned) in [("200/1s", false), ("12000/60s", false), ("100/500ms", true)] {
        let server = start(&["--global", global]);
        server.signal("TERM");
        let (status, logs, _) = server.stopped();
        assert!(status.success(), "{logs}");
        assert_eq!(logs.contains("200 messages at once"), warned, "{global}: {logs}");
    }
}

#[tokio::test]
async fn logs_name_receivers_only_when_asked_to_and_texts_never() {
    for (level, named) in [("info", false), ("info,sms_gateway=debug", true)] {
        let server = Server::start_logging("sms_gateway", level, &[]);
        for _ in 0..4 {
            sms(&server, "bank", "otp", ALICE).await;
        }
        put(&server, "/downstream", r#"{"errors":"100%"}"#).await;
        sms(&server, "shop", "ads", "+15550000001").await;
        sms(&server, "Lysistrata", "otp", ALICE).await;
        server.signal("TERM");
        let (_, logs, _) = server.stopped();
        assert!(logs.contains("INFO"), "{logs}");
        for key in ["4917", "1555", "bank", "otp"] {
            assert_eq!(logs.contains(key), named, "{level} {key}: {logs}");
        }
        assert!(!logs.contains("Hello"), "{logs}");
    }
}

#[tokio::test]
async fn a_message_under_way_is_answered_before_the_server_stops() {
    let redis = Redis::start().await;
    for store in [&[][..], &["--redis", &redis.url()]] {
        let flags = ["--receiver-limit", "1/1h", "--downstream-latency", "3s"];
        let server = start(&[&flags[..], store].concat());
        let message = spawn_sms(&server, "bank", "otp", ALICE);
        until(async || server.get("/downstream").await.json()["under_way"] == 1).await;
        server.signal("TERM");
        assert_eq!(message.await.unwrap().status, 202);
        let (status, _, printed) = server.stopped();
        assert_eq!((status.code(), printed), (Some(0), Vec::new()));
    }
}

#[tokio::test]
async fn who_stalls_anywhere_in_a_message_is_hung_up_on() {
    let server = start(&["--idle-timeout", "2s"]);
    let body = message("bank", "otp", ALICE);
    let length = body.len();
    let head = format!("POST /sms HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    let request = format!("{head}{body}");
    let mut stalled = Vec::new();
    for length in 0..request.len() {
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
    assert_eq!(sms(&server, "bank", "otp", ALICE).await.status, 202);
}

#[tokio::test]
async fn a_signal_stops_an_idle_server_at_once() {
    for signal in ["TERM", "INT"] {
        let server = start(&[]);
        // The client keeps the connection open, which must not hold the server up.
        assert_eq!(server.get("/healthz").await.status, 200);
        let asked = Instant::now();
        server.signal(signal);
        let (status, logs, printed) = server.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert!(asked.elapsed() < Duration::from_secs(8), "its own time limit");
        assert_eq!(printed, Vec::<String>::new(), "one line on stdout, and no more");
    }
}

#[tokio::test]
async fn a_server_whose_logs_nobody_reads_goes_on_and_stops_when_told() {
    let server = Server::start_unheard("sms_gateway", &[]);
    assert_eq!(sms(&server, "bank", "otp", ALICE).await.status, 202);
    server.signal("TERM");
    assert_eq!(server.stopped().0.code(), Some(0));
}
