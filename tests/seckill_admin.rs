//! The seckill example's admin listener as a part of the process: flags, token, logs, signals, and
//! more than one Redis server.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use test_support::Redis;
use test_support::server_process::{Answer, Server, run};

const TOKEN: &str = "0123456789abcdef-the-token";
const ADMIN: [&str; 4] = ["--ban", "1/10m:1h", "--admin", "127.0.0.1:0"];
const BODY: &str = r#"{"for": "1h", "reason": "known to Aristophanes"}"#;

async fn admin(server: &Server, method: &str, path: &str) -> Answer {
    let request = server.admin_request(method, path);
    let body = if method == "PUT" { BODY } else { "" };
    server.send_body(request.header("authorization", format!("Bearer {TOKEN}")), body).await
}

#[tokio::test]
async fn the_token_comes_from_the_environment_or_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let from_file = [&ADMIN[..], &["--admin-token-file", file.path().to_str().unwrap()]].concat();
    for server in [
        Server::start_in("seckill", &[("SECKILL_ADMIN_TOKEN", TOKEN)], &ADMIN),
        Server::start("seckill", &from_file),
    ] {
        assert_eq!(admin(&server, "GET", "/admin/bans").await.status, 200);
    }
    // A token is no reason for a listener.
    let server = Server::start_in("seckill", &[("SECKILL_ADMIN_TOKEN", TOKEN)], &[]);
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_token() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let long = "hunter2".repeat(40);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--admin", "127.0.0.1:0"], 1, "SECKILL_ADMIN_TOKEN"),
        (&["--admin", "127.0.0.1:0", "--admin-token", "hunter2"], 1, "16 to 256 characters"),
        (&["--admin", "127.0.0.1:0", "--admin-token", ""], 1, "16 to 256 characters"),
        (&["--admin", "127.0.0.1:0", "--admin-token", &long], 1, "16 to 256 characters"),
        (
            &["--admin", "127.0.0.1:0", "--admin-token", "hunter2 hunter2 hunter2"],
            1,
            "characters of",
        ),
        (&["--admin", "127.0.0.1:0", "--admin-token-file", "/nowhere/x"], 1, "/nowhere/x"),
        (&["--admin", "127.0.0.1:0", "--admin-token-file", "/dev/null"], 1, "16 to 256 characters"),
        (&["--admin", &taken.1, "--admin-token", TOKEN], 1, "--admin IP:PORT"),
        (
            &["--admin", "127.0.0.1:0", "--admin-token", "hunter2", "--admin-token-file", "x"],
            2,
            "cannot be used with",
        ),
    ];
    for (flags, code, part) in cases {
        let whole = [&["--listen", "127.0.0.1:0", "--ban", "3/10m:1m"], *flags].concat();
        let output = run("seckill", &whole);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{flags:?}: {stderr}");
        assert!(stderr.contains(part), "{flags:?} should name {part}: {stderr}");
        assert!(*code == 2 || stderr.contains("hint: "), "{flags:?}: {stderr}");
        assert!(!stderr.contains("hunter2") && !stderr.contains(TOKEN), "{stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}

#[tokio::test]
async fn the_audit_log_names_users_only_when_asked_to_and_never_the_token() {
    for (level, named) in [("info", false), ("debug", true)] {
        let flags = [&ADMIN[..], &["--admin-token", TOKEN]].concat();
        let server = Server::start_logging("seckill", level, &flags);
        assert_eq!(admin(&server, "PUT", "/admin/bans/Lysistrata").await.status, 200);
        server.order("iphone", "Lysistrata").await.problem(403);
        assert_eq!(admin(&server, "DELETE", "/admin/bans/Lysistrata").await.status, 204);
        let wrong = server.admin_request("GET", "/admin/bans/Lysistrata");
        server.send(wrong.header("authorization", "Bearer wrong-wrong-wrong")).await.problem(401);
        server.signal("TERM");
        let (_, logs, _) = server.stopped();
        for event in ["audit: a ban was imposed", "audit: a ban was lifted", "audit: refused"] {
            assert!(logs.contains(event), "{event}: {logs}");
        }
        assert_eq!(logs.contains("Lysistrata"), named, "{level}: {logs}");
        assert_eq!(logs.contains("Aristophanes"), named, "{level}: {logs}");
        assert!(!logs.contains(TOKEN) && !logs.contains("wrong-wrong"), "{logs}");
    }
}

#[tokio::test]
async fn both_listeners_stop_at_a_signal_and_hang_up_on_the_silent() {
    let flags = [&ADMIN[..], &["--admin-token", TOKEN, "--idle-timeout", "200ms"]].concat();
    let server = Server::start("seckill", &flags);
    for url in [&server.url, server.admin_url.as_ref().unwrap()] {
        let mut silent = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
        let hung_up = tokio::task::spawn_blocking(move || silent.read_to_end(&mut Vec::new()));
        assert!(hung_up.await.unwrap().is_ok());
    }

    let flags = [&ADMIN[..], &["--admin-token", TOKEN]].concat();
    let server = Server::start("seckill", &flags);
    // The client keeps its connections open, which must not hold the server up.
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(admin(&server, "GET", "/admin/bans").await.status, 200);
    let urls = [server.url.clone(), server.admin_url.clone().unwrap()];
    server.signal("TERM");
    let (status, logs, printed) = server.stopped();
    assert_eq!(status.code(), Some(0), "{logs}");
    assert_eq!(logs.matches("stopped").count(), 1, "{logs}");
    assert_eq!(printed, Vec::<String>::new(), "two lines on stdout, and no more");
    for url in urls {
        assert!(TcpStream::connect(url.trim_start_matches("http://")).is_err(), "{url} is open");
    }
}

#[tokio::test]
async fn on_a_cluster_bans_hold_and_only_the_list_is_missing() {
    let cluster = test_support::Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let urls = urls.join(",");
    let more = ["--admin-token", TOKEN, "--redis", &urls, "--response-timeout", "10s"];
    let flags = [&ADMIN[..], &more, &["--ip-quota", "1000/60s", "--quota", "1/60s"]].concat();
    let server = Server::start("seckill", &flags);
    let listed = admin(&server, "GET", "/admin/bans").await;
    assert_eq!(listed.problem(501), "/problems/no-list");
    for user in ["alice", "bob", "carol", "dave"] {
        let path = format!("/admin/bans/{user}");
        assert_eq!(server.order("iphone", user).await.status, 201);
        server.order("iphone", user).await.problem(403);
        assert_eq!(admin(&server, "GET", &path).await.json()["reason"], "strikes");
        assert_eq!(admin(&server, "DELETE", &path).await.status, 204);
        let imposed = admin(&server, "PUT", &path).await.json();
        assert_eq!(imposed["reason"], "known to Aristophanes");
        server.order("iphone", user).await.problem(403);
    }
}

#[tokio::test]
async fn behind_sentinels_bans_hold_and_are_listed() {
    let watched = test_support::Sentinels::start().await;
    let urls = watched.urls().join(",");
    let more = ["--redis", &urls, "--sentinel-master", test_support::MASTER];
    let patient = ["--admin-token", TOKEN, "--response-timeout", "10s"];
    let server = Server::start("seckill", &[&ADMIN[..], &more, &patient].concat());
    assert_eq!(admin(&server, "PUT", "/admin/bans/mallory").await.status, 200);
    server.order("iphone", "mallory").await.problem(403);
    let listed = admin(&server, "GET", "/admin/bans").await.json();
    assert_eq!(listed["bans"][0]["user"], "mallory");
}
