//! The seckill example as a process: flags, errors at the start, logs, signals.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::time::{Duration, Instant};

use test_support::Redis;
use test_support::server_process::{Server, run};

#[test]
fn a_wrong_flag_exits_with_2_and_names_the_part() {
    let cases: &[(&[&str], &str)] = &[
        (&["--quota", "5"], "LIMIT/WINDOW"),
        (&["--quota", "0/60s"], "the limit is zero"),
        (&["--quota", "2/1s,5/sixty"], "quota number 2: the window \"sixty\""),
        (&["--ip-quota", "many/60s"], "the limit \"many\""),
        (&["--ip-quota", "none"], "write off"),
        (&["--stock", "iphone"], "SKU=COUNT"),
        (&["--stock", "i/phone=1"], "the SKU \"i/phone\""),
        (&["--stock", "iphone=-1"], "the count \"-1\""),
        (&["--stock", "a=1", "--stock", "a=2"], "--stock names the SKU a twice"),
        (&["--user-from", "x-user-id"], "PLACE:NAME"),
        (&["--user-from", "body:user"], "the place \"body\""),
        (&["--user-from", "header:a b"], "the name \"a b\""),
        (&["--prefix", "a{b}"], "a prefix is"),
        (&["--listen", "3000"], "--listen"),
        (&["--opens-in", "soon"], "length of time"),
        (&["--opens-in", "9000h"], "longer than a year"),
        (&["--opens-at", "noon"], "RFC 3339"),
        (&["--opens-in", "1s", "--opens-at", "2030-01-01T00:00:00Z"], "cannot be used with"),
        (&["--stocks", "iphone=1"], "--stock"),
    ];
    test_support::server_process::refuses("seckill", cases);
}

#[test]
fn help_names_every_flag_and_a_first_request() {
    let output = run("seckill", &["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in [
        "--listen",
        "--redis",
        "--on-failure",
        "[default: local]",
        "--prefix",
        "--quota",
        "--ip-quota",
        "--user-from",
        "--stock",
        "--opens-in",
        "--opens-at",
        "--idle-timeout",
        "--ban",
        "--admin",
        "--admin-token",
        "--admin-token-file",
        "SECKILL_ADMIN_TOKEN",
        "5/60s",
        "100/60s",
        "Behind a proxy",
        "iphone=100",
        "curl",
    ] {
        assert!(help.contains(part), "{part} is missing: {help}");
    }
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_password() {
    test_support::server_process::cannot_start("seckill");
}

#[tokio::test]
async fn logs_name_users_only_when_asked_to() {
    for (level, named) in [("info", false), ("info,seckill=debug", true)] {
        let server = Server::start_logging("seckill", level, &["--quota", "2/60s"]);
        for user in ["Lysistrata", "Lysistrata", "Lysistrata", &"Lysistrata".repeat(20)] {
            server.order("iphone", user).await;
        }
        server.order("nothing", "Lysistrata").await;
        server.signal("TERM");
        let (_, logs, _) = server.stopped();
        assert!(logs.contains("INFO"), "{logs}");
        assert_eq!(logs.contains("Lysistrata"), named, "{level}: {logs}");
    }
}

#[tokio::test]
async fn a_signal_stops_an_idle_server_at_once() {
    for signal in ["TERM", "INT"] {
        let server = Server::start("seckill", &[]);
        // The client keeps the connection open, which must not hold the server up.
        assert_eq!(server.get("/healthz").await.status, 200);
        let asked = Instant::now();
        server.signal(signal);
        let (status, logs, printed) = server.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert!(asked.elapsed() < Duration::from_secs(8), "it ran into its own time limit");
        assert_eq!(printed, Vec::<String>::new(), "one line on stdout, and no more");
    }
}

#[tokio::test]
async fn a_server_whose_logs_nobody_reads_serves_and_stops_all_the_same() {
    let server = Server::start_unheard("seckill", &[]);
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    server.signal("TERM");
    assert_eq!(server.stopped().0.code(), Some(0));
}

#[tokio::test]
async fn a_request_under_way_is_answered_before_the_server_stops() {
    let mut answered = 503;
    // On a machine that stands still for a second the server gives Redis up: try again then.
    for _ in 0..5 {
        let asked = Instant::now();
        answered = answer_after_a_signal().await;
        if answered != 503 || asked.elapsed() < Duration::from_secs(1) {
            break;
        }
    }
    assert_eq!(answered, 201);
}

/// Asks a server to stop while an order is under way; returns the order's status.
async fn answer_after_a_signal() -> u16 {
    let redis = Redis::start().await;
    let server = Server::start("seckill", &["--redis", &redis.url()]);
    // Redis holds scripts back, and with them the order.
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let order = server.spawn(server.order_request("iphone", "alice"));
    while !redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.signal("TERM");
    // New connections are refused once the server has begun to stop.
    let address = server.url.trim_start_matches("http://").to_owned();
    while tokio::net::TcpStream::connect(&address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    let status = order.await.unwrap().status.as_u16();
    assert_eq!(server.stopped().0.code(), Some(0));
    status
}
