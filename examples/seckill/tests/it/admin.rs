//! The admin listener, as a page in the operator's browser or a stranger behind a proxy sees it.

use test_support::raw_client::RawClient;
use test_support::server_process::Server;

use crate::{TOKEN, admin_request, alone, stop};

const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

#[tokio::test]
async fn a_rebound_name_is_refused() {
    let server = alone(&ADMIN);
    for host in ["evil.example", "evil.example:3001", "localhost.evil.example"] {
        let ban = admin_request(&server, "PUT", "/admin/bans/alice").header("host", host);
        let ban = ban.header("origin", format!("http://{host}"));
        let answer = server.send_body(ban, r#"{"for": "1h", "reason": ""}"#).await;
        assert_eq!(answer.problem(403), "/problems/not-local", "{host}");
    }
    assert_nothing_banned(&server).await;
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let server = alone(&ADMIN);
    let marks = [("origin", "http://evil.example"), ("origin", "null")];
    for (name, value) in marks.into_iter().chain([("sec-fetch-site", "cross-site")]) {
        let ban = admin_request(&server, "PUT", "/admin/bans/alice").header(name, value);
        let answer = server.send_body(ban, r#"{"for": "1h", "reason": ""}"#).await;
        assert_eq!(answer.problem(403), "/problems/not-local", "{name}: {value}");
    }
    assert_nothing_banned(&server).await;
    let own = server.admin_url.clone().unwrap();
    let ban = admin_request(&server, "PUT", "/admin/bans/alice").header("origin", own);
    assert_eq!(server.send_body(ban, r#"{"for": "1h", "reason": ""}"#).await.status, 200);
}

#[tokio::test]
async fn a_forwarded_request_is_refused() {
    let server = alone(&ADMIN);
    for mark in ["x-forwarded-for", "forwarded", "via", "x-real-ip"] {
        let list = admin_request(&server, "GET", "/admin/bans").header(mark, "203.0.113.9");
        assert_eq!(server.send(list).await.problem(403), "/problems/not-local", "{mark}");
    }
    assert!(stop(server).contains("audit: refused"), "the operator can see it");
}

async fn assert_nothing_banned(server: &Server) {
    let list = server.send(admin_request(server, "GET", "/admin/bans")).await;
    assert_eq!((list.status.as_u16(), list.json()["bans"].as_array().unwrap().len()), (200, 0));
}

#[tokio::test]
async fn the_live_page_counts_a_denied_call_as_denied() {
    let server = alone(&[&ADMIN[..], &["--quota", "1/60s"]].concat());
    let order = || server.order_request("iphone", "alice");
    assert_eq!(server.send(order()).await.status, 201);
    let denied = server.send(order().header("content-type", "application/grpc")).await;
    assert_eq!((denied.status.as_u16(), denied.header("grpc-status")), (200, "8"));
    let mut viewer = RawClient::connect_to(server.admin_url.as_deref().unwrap()).await;
    let head = format!(
        "GET /admin/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    );
    viewer.write(head.as_bytes()).await;
    // One is ordered, and one is too many.
    viewer.read_until(r#""counts":[1,0,0,1,0,0,0]"#).await;
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn prometheus_reads_the_metrics() {
    let server = alone(&ADMIN);
    for _ in 0..7 {
        server.order("iphone", "alice").await;
    }
    let page = server.send(admin_request(&server, "GET", "/metrics")).await;
    assert_eq!(page.status, 200);
    let text = std::str::from_utf8(&page.body).unwrap();
    assert_eq!(page.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    for line in [
        "# TYPE sliding_window_decisions_total counter",
        r#"sliding_window_decisions_total{policy="user",outcome="admitted"} 5"#,
        r#"sliding_window_decisions_total{policy="user",outcome="denied"} 2"#,
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is missing: {text}");
    }
    assert!(!text.contains("alice"));
    let stranger = server.send(server.admin_request("GET", "/metrics")).await;
    assert_eq!(stranger.problem(401), "/problems/no-token");
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn the_scrape_token_reads_the_metrics_and_nothing_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "the-token-of-prometheus\n").unwrap();
    let flags = ["--scrape-token-file", file.path().to_str().unwrap()];
    let server = alone(&[&ADMIN[..], &flags].concat());
    let scrape = async |method: &str, path: &str| {
        let request = server.admin_request(method, path);
        server.send(request.header("authorization", "Bearer the-token-of-prometheus")).await
    };
    assert_eq!(scrape("GET", "/metrics").await.status, 200);
    for (method, path) in [
        ("GET", "/admin/bans"),
        ("PUT", "/admin/bans/alice"),
        ("GET", "/admin/policies"),
        ("GET", "/x"),
    ] {
        assert_eq!(scrape(method, path).await.problem(401), "/problems/no-token", "{path}");
    }
    assert_eq!(server.send(admin_request(&server, "GET", "/metrics")).await.status, 200);
}
