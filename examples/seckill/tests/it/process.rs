//! The server as a process: what prevents its start, logs, signals.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use test_support::server_process::{Server, cannot_start, refuses, run};
use test_support::{Redis, eventually};
use tokio::time::timeout;

use crate::{SECKILL, TOKEN, admin_request, alone, on_redis, one_is_blocked, stop};

const ADMIN: [&str; 4] = ["--ban", "1/10m:1h", "--admin", "127.0.0.1:0"];

#[test]
fn a_wrong_flag_is_named() {
    let cases: &[(&[&str], &str)] = &[
        (&["--quota", "2/1s,5/sixty"], "quota number 2: the window \"sixty\""),
        (&["--ip-quota", "none"], "write off"),
        (&["--stock", "i/phone=1"], "the SKU \"i/phone\""),
        (&["--stock", "a=1", "--stock", "a=2"], "--stock names the SKU a twice"),
        (&["--user-from", "body:user"], "the place \"body\""),
        (&["--opens-in", "9000h"], "longer than a year"),
        (&["--opens-at", "noon"], "RFC 3339"),
        (&["--on-failure", "sometimes"], "\"sometimes\" is not a failure policy"),
        (&["--ban", "3/10m:1h,1m"], "level number 2"),
        (&["--ban", "3/10m:1m", "--admin", "0.0.0.0:0"], "other machines could reach it"),
        (&["--sentinel-master", "shop"], "--redis"),
        (&["--min-replicas", "1"], "--redis"),
        (&["--on-failure", "closed"], "--redis"),
    ];
    refuses(SECKILL, cases);
}

#[test]
fn a_failed_start_names_the_way_out() {
    cannot_start(SECKILL);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--admin", "127.0.0.1:0"], "--admin-token-file"),
        (&["--admin", "127.0.0.1:0", "--admin-token", "hunter2"], "16 to 256 characters"),
        (&["--admin", "127.0.0.1:0", "--admin-token-file", "/nowhere/x"], "/nowhere/x"),
        (&["--admin", &taken.1, "--admin-token", TOKEN], "--admin IP:PORT"),
    ];
    for (flags, part) in cases {
        let output =
            run(SECKILL, &[&["--listen", "127.0.0.1:0", "--ban", "3/10m:1m"], *flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{flags:?}: {stderr}");
        assert!(!stderr.contains("hunter2") && !stderr.contains(TOKEN), "{stderr}");
    }
}

#[tokio::test]
async fn token_comes_from_environment_or_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let from_file = [&ADMIN[..], &["--admin-token-file", file.path().to_str().unwrap()]].concat();
    for server in
        [Server::start_in(SECKILL, &[("SECKILL_ADMIN_TOKEN", TOKEN)], &ADMIN), alone(&from_file)]
    {
        assert_eq!(server.send(admin_request(&server, "GET", "/admin/bans")).await.status, 200);
    }
}

#[tokio::test]
async fn logs_name_users_at_debug_and_no_token() {
    for (level, named) in [("info", false), ("info,seckill=debug", true)] {
        let flags = [&ADMIN[..], &["--admin-token", TOKEN, "--quota", "2/60s"]].concat();
        let server = Server::start_logging(SECKILL, level, &flags);
        for user in ["Lysistrata", "Lysistrata", "Lysistrata", &"Lysistrata".repeat(20)] {
            server.order("iphone", user).await;
        }
        let path = "/admin/bans/Lysistrata";
        let body = r#"{"for": "2h", "reason": "known to Aristophanes"}"#;
        let put = admin_request(&server, "PUT", path);
        assert_eq!(server.send_body(put, body).await.status, 200);
        assert_eq!(server.send(admin_request(&server, "DELETE", path)).await.status, 204);
        let wrong = server.admin_request("GET", path);
        server.send(wrong.header("authorization", "Bearer wrong-wrong-wrong")).await.problem(401);
        let logs = stop(server);
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
        let server = alone(&[&ADMIN[..], &["--admin-token", TOKEN]].concat());
        // The client keeps its connections open, which must not hold the server up.
        assert_eq!(server.get("/healthz").await.status, 200);
        server.send(server.admin_request("GET", "/admin/bans")).await.problem(401);
        let urls = [server.url.clone(), server.admin_url.clone().unwrap()];
        let asked = Instant::now();
        server.signal(signal);
        let (status, logs, printed) = server.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert!(asked.elapsed() < Duration::from_secs(8), "it ran into its own time limit");
        assert_eq!(printed, Vec::<String>::new(), "two lines on stdout, and no more");
        for url in urls {
            assert!(
                TcpStream::connect(url.trim_start_matches("http://")).is_err(),
                "{url} is open"
            );
        }
    }
}

#[tokio::test]
async fn a_server_without_a_reader_of_its_logs_serves() {
    let server = Server::start_unheard(SECKILL, &[]);
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    server.signal("TERM");
    assert_eq!(server.stopped().0.code(), Some(0));
}

#[tokio::test]
async fn a_server_whose_logs_are_not_read_serves() {
    let flags = ["--stock", "iphone=2000", "--ip-quota", "off"];
    let server = Server::start_unread(SECKILL, &flags);
    // Each is a line, and together they are more than a pipe takes.
    for user in 0..2000 {
        let user = format!("user-{user}");
        let order = timeout(Duration::from_secs(20), server.order("iphone", &user)).await;
        let order = order.expect("an answer");
        assert_eq!(order.status, 201);
    }
    server.signal("TERM");
    let (status, logs, printed) = server.stopped();
    assert_eq!((status.code(), printed.len()), (Some(0), 0));
    assert!(logs.contains("order placed"), "{logs}");
}

#[tokio::test]
async fn a_hangup_without_a_policy_file_changes_nothing() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &[]);
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let order = server.spawn(server.order_request("iphone", "alice"));
    one_is_blocked(&redis).await;
    server.signal("HUP");
    server.logs_until("SIGHUP", 1).await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_eq!(order.await.unwrap().status, 201);
    assert_eq!(server.order("iphone", "bob").await.status, 201, "it serves on");
    stop(server);
}

#[tokio::test]
async fn order_under_way_finishes_before_the_stop() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &[]);
    // Redis holds scripts back, and with them the order.
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let order = server.spawn(server.order_request("iphone", "alice"));
    one_is_blocked(&redis).await;
    server.signal("TERM");
    // New connections are refused once the server has begun to stop.
    let address = server.url.trim_start_matches("http://").to_owned();
    eventually("it refuses", async || TcpStream::connect(&address).is_err()).await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_eq!(order.await.unwrap().status, 201);
    assert_eq!(server.stopped().0.code(), Some(0));
}
