//! The live page: what an operator sees, and how the page is guarded.

use std::time::Duration;

use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::Server;

use crate::chrome::{Chrome, Tab};
use crate::{ADMIN, SECKILL, TOKEN};

/// Opens the live page as an operator does.
pub(crate) async fn open_live(chrome: &Chrome, server: &Server) -> Tab {
    let tab = chrome.open(server.admin_url.as_deref().unwrap()).await;
    sign_in(&tab).await;
    tab
}

/// Types the token, and waits for the first sample.
async fn sign_in(tab: &Tab) {
    tab.fill("#token", TOKEN).await;
    tab.press("Enter").await;
    tab.sees("#connection", |text| text == "Live").await;
    tab.sees("#main", |text| !text.is_empty()).await;
}

/// Starts a server with an admin listener.
pub(crate) fn start(flags: &[&str]) -> Server {
    Server::start(SECKILL, &[&ADMIN[..], flags].concat())
}

/// Returns the number of a row of the table of outcomes, in the second column or the third.
async fn figure(tab: &Tab, outcome: &str, column: usize) -> f64 {
    let text: String = tab
        .run(&format!(
            "[...document.querySelectorAll('#classes tr')] \
               .find((row) => row.innerText.startsWith('{outcome}')).cells[{column}].innerText"
        ))
        .await;
    text.replace(',', "").parse().unwrap()
}

async fn total(tab: &Tab, outcome: &str, at_least: f64) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let seen = figure(tab, outcome, 2).await;
        if seen >= at_least {
            return assert_eq!(seen, at_least, "{outcome}");
        }
        assert!(std::time::Instant::now() < deadline, "{outcome}: {seen}, not {at_least}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn page_needs_the_token() {
    let server = start(&[]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(server.admin_url.as_deref().unwrap()).await;
    tab.fill("#token", "not-the-token-of-this-server").await;
    tab.press("Enter").await;
    tab.sees("#connection", |text| text == "The token is not the one of this server.").await;
    assert_eq!(tab.text("#main").await, "");
    tab.fill("#token", TOKEN).await;
    tab.press("Enter").await;
    tab.sees("#requests-title", |text| text.starts_with("Orders per second")).await;
    assert!(!tab.run::<String>("location.href").await.contains(TOKEN), "not in the URL");
    assert_eq!(tab.run::<usize>("localStorage.length + document.cookie.length").await, 0);
    // It is kept for the tab, also after a reload, until the operator forgets it.
    tab.reload().await;
    tab.sees("#connection", |text| text == "Live").await;
    tab.click("#logout").await;
    tab.sees("#login", |text| text.contains("Admin token")).await;
    assert_eq!(tab.run::<usize>("sessionStorage.length").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_and_stock_are_shown() {
    let server = start(&["--quota", "2/10m", "--stock", "iphone=1", "--stock", "ipad=5"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    server.order("iphone", "alice").await;
    server.order("iphone", "bob").await;
    for status in [201, 409, 429] {
        assert_eq!(server.order("ipad", "bob").await.status, status);
    }
    server.order("none-such", "carol").await;
    for (outcome, count) in [
        ("Ordered (201)", 2.0),
        ("Ordered before (409)", 1.0),
        ("Sold out (410)", 1.0),
        ("Too many requests (429)", 1.0),
        ("Other", 1.0),
        ("Banned (403)", 0.0),
    ] {
        total(&tab, outcome, count).await;
    }
    tab.sees("#stock", |text| text.contains("iphone") && text.contains("sold out")).await;
    tab.sees("#stock", |text| text.contains("4 of 5 left")).await;
    tab.sees("#latency", |text| text.starts_with("p50 ") && text.contains("p99 ")).await;
    assert_eq!(tab.text("#store").await, "in this process");
    assert_eq!(tab.text("#opening").await, "open");
    tab.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connection_is_made_again() {
    let server = start(&[]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    server.signal("STOP");
    tab.sees("#connection", |text| text == "No connection: trying again").await;
    server.signal("CONT");
    tab.sees("#connection", |text| text == "Live").await;
    server.order("iphone", "alice").await;
    total(&tab, "Ordered (201)", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chart_grows_with_the_orders() {
    let server = start(&["--quota", "9999/60s", "--ip-quota", "off"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    // The first area is that of the orders, the second that of users with an order.
    let height = "document.querySelectorAll('#chart path')[1].getBBox().height";
    assert_eq!(tab.run::<f64>(height).await, 0.0);
    for _ in 0..50 {
        server.order("iphone", "alice").await;
    }
    tab.until(&format!("{height} > 50")).await;
    tab.sees("#peak", |text| text.starts_with("at most ") && text != "at most 1 per second").await;
    // A new viewer sees what was before.
    let other = open_live(&chrome, &server).await;
    other.until(&format!("{height} > 50")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controls_have_names_and_are_reached_by_tab() {
    let server = start(&[]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    let unnamed = "[...document.querySelectorAll('main input, main button, main meter, svg')] \
        .filter((it) => !(it.labels?.length || it.innerText || it.ariaLabel)).length";
    assert_eq!(tab.run::<usize>(unnamed).await, 0, "each control says what it is");
    tab.run::<()>("document.querySelector('#logout').focus()").await;
    let mut reached = Vec::new();
    for _ in 0..4 {
        tab.press("Tab").await;
        reached.push(
            tab.run::<String>("document.activeElement.innerText || document.activeElement.id")
                .await,
        );
    }
    assert_eq!(reached, ["user", "Explain", "Ban …", "Lift the ban"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn early_orders_are_no_bans() {
    let server = start(&["--opens-in", "1h"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    server.order("iphone", "alice").await.problem(403);
    let ban = server.admin_request("PUT", "/admin/bans/mallory");
    let ban = ban.header("authorization", format!("Bearer {TOKEN}"));
    server.send_body(ban, r#"{"for": "1h", "reason": ""}"#).await;
    server.order("iphone", "mallory").await.problem(403);
    total(&tab, "Other", 1.0).await;
    total(&tab, "Banned (403)", 1.0).await;
    tab.sees("#opening", |text| text.starts_with("opens in 35")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_stops_is_seen() {
    let redis = Redis::start().await;
    let url = redis.url();
    let server = start(&["--redis", &url, "--quota", "99/1s", "--response-timeout", "1s"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    tab.sees("#store", |text| text.starts_with("Redis replies in ")).await;
    assert_eq!(tab.text("#breaker").await, "closed");
    server.order("iphone", "alice").await;
    assert_eq!(tab.text("#decided").await, "Redis");
    redis.signal("STOP");
    tab.sees("#alert", |text| text == "Redis does not reply: the failure policy decides.").await;
    tab.sees("#breaker", |text| text == "open").await;
    let mut user = 0;
    while tab.text("#decided").await != "this server alone" {
        user += 1;
        assert!(user < 1000, "the page does not show that this server decides");
        server.order("iphone", &format!("user-{user}")).await;
    }
    redis.signal("CONT");
    tab.sees("#alert", str::is_empty).await;
    tab.sees("#store", |text| text.starts_with("Redis replies in ")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_are_bounded() {
    let server = start(&[]);
    let (url, mut viewers) = (server.admin_url.as_deref().unwrap(), Vec::new());
    let head = format!(
        "GET /admin/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    );
    for _ in 0..16 {
        let mut viewer = RawClient::connect_to(url).await;
        viewer.write(head.as_bytes()).await;
        viewer.has_answered().await;
        viewers.push(viewer);
    }
    let live = || {
        let request = server.admin_request("GET", "/admin/live");
        request.header("authorization", format!("Bearer {TOKEN}"))
    };
    let refused = server.send(live()).await;
    assert_eq!(refused.problem(503), "/problems/too-many-viewers");
    assert!(refused.retry_after() >= 1);
    // The server does not wait for the viewers when it stops.
    let begun = std::time::Instant::now();
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success() && !logs.contains("are cut off"), "{:?}: {logs}", begun.elapsed());
}

#[tokio::test]
async fn samples_need_the_token() {
    let server = start(&[]);
    for path in ["/admin/live", "/admin/policies"] {
        let refused = server.send(server.admin_request("GET", path)).await;
        assert_eq!(refused.problem(401), "/problems/no-token", "{path}");
    }
    for path in ["/", "/live.css", "/live.js"] {
        let page = server.send(server.admin_request("GET", path)).await;
        assert_eq!(page.status, 200, "{path}");
        let policy = page.header("content-security-policy");
        assert!(policy.contains("script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        let rebound = server.admin_request("GET", path).header("host", "evil.example");
        assert_eq!(server.send(rebound).await.problem(403), "/problems/not-local", "{path}");
        let post = server.send(server.admin_request("POST", path)).await;
        assert_eq!(post.problem(405), "about:blank", "{path}");
    }
    // The shop does not have the page.
    server.get("/live.js").await.problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn live_page_fits_a_phone_in_dark_mode() {
    let server = start(&[]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    let color = "getComputedStyle(document.querySelector('section')).backgroundColor";
    let light: String = tab.run(color).await;
    tab.set_dark(true).await;
    assert_ne!(tab.run::<String>(color).await, light);
    tab.resize(360, 740).await;
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(tab.run::<i64>(overflow).await, 0, "nothing is cut off at the side");
    for user in ["mallory", "a-user-with-a-rather-long-id-from-a-directory@example.org"] {
        for _ in 0..7 {
            server.order("iphone", user).await;
        }
    }
    tab.sees("#offenders", |text| text.contains("directory@example.org")).await;
    assert_eq!(tab.run::<i64>(overflow).await, 0, "also with users");
}
