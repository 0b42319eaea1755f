//! The server as a process: what prevents its start, logs, signals, and clients that are slow or leave.

use std::net::{TcpListener, TcpStream};

use test_support::server_process::{cannot_start, refuses};

use crate::*;

#[test]
fn a_wrong_flag_is_named() {
    for (flags, part) in [
        ("--quota 2/1s,5/sixty", "quota number 2: the window \"sixty\""),
        ("--ip-quota none", "write off"),
        ("--stock i/phone=1", "the SKU \"i/phone\""),
        ("--stock a=-1", "the count \"-1\""),
        ("--stock a=0", "from 1 to"),
        ("--user-query=", "--user-query"),
        ("--stock ..=1", "the SKU"),
        ("--stock a=1 --stock a=2", "--stock names the SKU a twice"),
        ("--opens-in 9000h", "longer than a year"),
        ("--opens-at noon", "RFC 3339"),
        ("--admin 0.0.0.0:0", "other machines could reach it"),
        ("--sentinel-master shop", "--redis"),
        ("--min-replicas 1", "--redis"),
        ("--on-failure closed", "--redis"),
        ("--trust-proxy 10.0.0.1,0.0.0.0/0", "every client could name its own address"),
        ("--accounts 5", "write off"),
        ("--nat 10.0.0.0/8", "write CIDR=USERS"),
        ("--nat 10.0.0.0/8=0", "one user or more"),
        ("--nat 10.0.0.0=5", "write CIDR=USERS"),
        ("--nat 2001:db8::5/128=5", "count as one"),
        ("--nat 10.0.0.0/8=9 --accounts off", "--nat needs --accounts"),
        ("--turn 10ms", "shorter than a second"),
        ("--pay-within off", "length of time"),
    ] {
        refuses(SECKILL, &[(&words(flags), part)]);
    }
}

#[test]
fn a_failed_start_names_the_way_out() {
    cannot_start(SECKILL);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let is_taken = format!("--admin {} --admin-token {TOKEN}", taken.local_addr().unwrap());
    for (flags, part) in [
        ("--admin 127.0.0.1:0", "--admin-token"),
        ("--admin 127.0.0.1:0 --admin-token hunter2", "16 to 256 characters"),
        (&is_taken, "--admin IP:PORT"),
        ("--redis redis://127.0.0.1:1 --sentinel-master hunter2@shop", "a login without `:`"),
        // Before Redis, which does not run, hears of the sale.
        ("--payment-token hunter2-hunter2 --redis redis://127.0.0.1:1", "16 to 256 characters"),
    ] {
        let logs = fails(SECKILL, &words(&format!("--listen 127.0.0.1:0 {flags}")), 1, part);
        assert!(logs.contains("hint: "), "{flags:?}: {logs}");
        assert!(!logs.contains("hunter2") && !logs.contains(TOKEN), "{logs}");
    }
}

#[tokio::test]
async fn logs_name_users_at_debug_and_no_token() {
    for (level, named) in [("info", false), ("info,seckill=debug", true)] {
        let server = Server::start_logging(SECKILL, level, &words(ADMIN));
        server.order("iphone", "Lysistrata").await;
        server.order("iphone", &"Lysistrata".repeat(20)).await;
        let path = "/admin/bans/Lysistrata";
        let ban = r#"{"for": "2h", "reason": "known to Aristophanes"}"#;
        assert_eq!(server.ask("PUT", path, ban).await.status, 200);
        assert_eq!(server.ask("DELETE", path, "").await.status, 204);
        let wrong = server.admin_request("GET", path);
        server.send(wrong.header("authorization", "Bearer wrong-wrong-wrong")).await.problem(401);
        let logs = server.stop();
        for event in ["audit: a ban was imposed", "audit: a ban was lifted", "audit: refused"] {
            assert!(logs.contains(event), "{event}: {logs}");
        }
        for name in ["Lysistrata", "Aristophanes"] {
            assert_eq!(logs.contains(name), named, "{level}: {logs}");
        }
        assert!(!logs.contains(TOKEN) && !logs.contains("wrong-wrong"), "{logs}");
    }
}

#[tokio::test]
async fn a_signal_stops_both_listeners_at_once() {
    for signal in ["TERM", "INT"] {
        let server = alone(ADMIN);
        // The client keeps its connections open, which must not hold the server up.
        assert_eq!(server.get("/healthz").await.status, 200);
        server.ask("GET", "/admin/live", "").await;
        let urls = [server.url.clone(), server.admin_url.clone().unwrap()];
        let asked = Instant::now();
        server.signal(signal);
        let (status, logs, printed) = server.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert!(asked.elapsed() < Duration::from_secs(8), "it ran into its own time limit");
        assert_eq!(printed, Vec::<String>::new(), "two lines on stdout, and no more");
        for url in urls {
            assert!(TcpStream::connect(url.trim_start_matches("http://")).is_err(), "{url}");
        }
    }
}
