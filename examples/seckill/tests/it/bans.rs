//! Bans: by strikes, and by an operator through the admin listener.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::server_process::{HttpResponse, Server};
use test_support::{Cluster, Redis};

use crate::{TOKEN, admin_request, alone, on_both, on_redis, stop, ttl};

/// The first strike is a ban of an hour.
const STRICT: [&str; 8] =
    ["--quota", "2/60s", "--ban", "1/10m:1h", "--admin", "127.0.0.1:0", "--admin-token", TOKEN];

async fn admin(server: &Server, method: &str, path: &str) -> HttpResponse {
    server.send(admin_request(server, method, path)).await
}

async fn impose(server: &Server, user: &str, length: &str, reason: &str) -> Value {
    let body = json!({ "for": length, "reason": reason }).to_string();
    let path = format!("/admin/bans/{user}");
    let answer = server.send_body(admin_request(server, "PUT", &path), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Checks that this is the answer to a user who is banned for about so long.
fn assert_banned(answer: &HttpResponse, seconds: u64) {
    assert!(answer.problem(403).ends_with("#abnormal-usage-detected"), "{answer:?}");
    assert_eq!(answer.json()["violated-policies"], json!(["user"]));
    // A busy machine may take its time between the ban and the answer.
    assert!((seconds - 60..=seconds).contains(&answer.retry_after()), "{answer:?}");
}

/// Orders until the answer is no longer this one.
async fn order_until_not(server: &Server, user: &str, status: u16) -> HttpResponse {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = server.order("iphone", user).await;
        if answer.status != status {
            return answer;
        }
        assert!(Instant::now() < deadline, "still {answer:?}");
    }
}

#[tokio::test]
async fn strikes_ban_a_user_and_no_other() {
    on_both(&STRICT, async |server| {
        assert_eq!(server.order("iphone", "mallory").await.status, 201);
        server.order("iphone", "mallory").await.problem(409);
        for _ in 0..3 {
            let banned = server.order("iphone", "mallory").await;
            assert_banned(&banned, 3600);
            assert!(!String::from_utf8_lossy(&banned.body).contains("strikes"));
        }
        assert_eq!(server.order("iphone", "alice").await.status, 201);
        let ban = admin(server, "GET", "/admin/bans/mallory").await.json();
        assert_eq!((&ban["user"], &ban["reason"]), (&"mallory".into(), &"strikes".into()));
        let left = ban["remaining_seconds"].as_u64().unwrap();
        assert!((3540..=3600).contains(&left), "{ban}");
        let until = ban["until"].as_str().unwrap();
        assert!(until.len() == 20 && until.ends_with('Z'), "{ban}");
        admin(server, "GET", "/admin/bans/alice").await.problem(404);
    })
    .await;
}

#[tokio::test]
async fn an_operator_imposes_and_lifts_bans() {
    on_both(&STRICT, async |server| {
        assert_eq!(admin(server, "GET", "/admin/bans").await.json(), json!({ "bans": [] }));
        let none = admin(server, "DELETE", "/admin/bans/mallory").await;
        assert_eq!(none.problem(404), "/problems/not-banned");
        let ban = impose(server, "mallory", "1h", "sells \"accounts\"\n陈").await;
        assert_eq!((&ban["user"], &ban["remaining_seconds"]), (&"mallory".into(), &3600.into()));
        let stands = impose(server, "mallory", "10m", "shorter").await;
        assert_eq!(stands["reason"], "sells \"accounts\"\n陈", "a ban only lengthens");
        impose(server, "trudy", "2h", "").await;
        let listed = admin(server, "GET", "/admin/bans").await.json();
        let users: Vec<_> =
            listed["bans"].as_array().unwrap().iter().map(|it| &it["user"]).collect();
        assert_eq!(users, ["trudy", "mallory"], "the longest first");

        let banned = server.order("iphone", "mallory").await;
        assert_banned(&banned, 3600);
        assert!(!String::from_utf8_lossy(&banned.body).contains("accounts"));
        assert_eq!(admin(server, "DELETE", "/admin/bans/mallory").await.status, 204);
        admin(server, "GET", "/admin/bans/mallory").await.problem(404);
        // Within a second, and uncounted until then.
        assert_eq!(order_until_not(server, "mallory", 403).await.status, 201);
        assert_banned(&server.order("iphone", "trudy").await, 7200);
    })
    .await;
}

#[tokio::test]
async fn bans_are_listed_by_pages() {
    on_both(&STRICT, async |server| {
        for user in 0..60 {
            impose(server, &format!("user-{user}"), "1h", "a script").await;
        }
        let (mut path, mut users, mut pages) = ("/admin/bans?limit=10".to_owned(), vec![], 0);
        loop {
            let page = admin(server, "GET", &path).await.json();
            let listed = page["bans"].as_array().unwrap().iter();
            users.extend(listed.map(|it| it["user"].as_str().unwrap().to_owned()));
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/admin/bans?limit=10&cursor={next}");
        }
        users.sort();
        users.dedup();
        assert_eq!(users.len(), 60);
        assert!((3..=7).contains(&pages), "{pages} pages, of which the last may be empty");
    })
    .await;
}

#[tokio::test]
async fn the_user_in_the_path_is_the_user_who_orders() {
    on_both(&STRICT, async |server| {
        for (path, user) in [
            ("a%2Fb", "a/b"),
            ("%7Ba%7D", "{a}"),
            ("%257D", "%7D"),
            ("%E9%99%88", "陈"),
            ("..", ".."),
            ("*", "*"),
        ] {
            assert_eq!(impose(server, path, "1h", "odd").await["user"], user);
            assert_banned(&server.order("iphone", user).await, 3600);
            assert_eq!(admin(server, "DELETE", &format!("/admin/bans/{path}")).await.status, 204);
        }
        for path in ["%ff", "%EF%BF%BD", "sha256:x", &"x".repeat(129)] {
            let answer = admin(server, "GET", &format!("/admin/bans/{path}")).await;
            assert_eq!(answer.problem(400), "/problems/bad-user", "{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn no_route_works_without_the_token() {
    let server = alone(&STRICT);
    impose(&server, "mallory", "1h", "stays").await;
    let (upper, part) = (TOKEN.to_uppercase(), &TOKEN[1..]);
    let wrong = [format!("Basic {TOKEN}"), format!("Bearer {TOKEN}x"), format!("Bearer {upper}")];
    let odd = ["", "Bearer", "Bearer ", TOKEN, &format!("Bearer {part}")].map(str::to_owned);
    for value in wrong.into_iter().chain(odd).map(Some).chain([None]) {
        for (method, path) in [
            ("GET", "/admin/bans"),
            ("GET", "/admin/bans/mallory"),
            ("PUT", "/admin/bans/alice"),
            ("DELETE", "/admin/bans/mallory"),
            ("GET", "/nowhere"),
        ] {
            let mut request = server.admin_request(method, path);
            if let Some(value) = &value {
                request = request.header("authorization", value);
            }
            let refused = server.send_body(request, r#"{"for": "1h", "reason": ""}"#).await;
            assert_eq!(refused.problem(401), "/problems/no-token", "{value:?}");
            assert_eq!(refused.header("www-authenticate"), "Bearer");
        }
    }
    let listed = admin(&server, "GET", "/admin/bans").await.json();
    assert_eq!((&listed["bans"][0]["user"], &listed["bans"][1]), (&"mallory".into(), &Value::Null));
    // The shop itself has nothing to administer.
    let request = server.request("DELETE", "/admin/bans/mallory");
    server.send(request.header("authorization", format!("Bearer {TOKEN}"))).await.problem(404);
}

#[tokio::test]
async fn a_malformed_ban_is_refused() {
    on_both(&STRICT, async |server| {
        let put = async |body: &[u8]| {
            server.send_body(admin_request(server, "PUT", "/admin/bans/alice"), body.to_vec()).await
        };
        let long = json!({ "for": "1h", "reason": "x".repeat(501) }).to_string();
        for body in [
            "",
            "1h",
            r#"{"for": "1h"}"#,
            r#"{"for": 3600, "reason": "x"}"#,
            r#"{"for": "1h", "reason": "x", "until": 1}"#,
            r#"{"for": "-1h", "reason": "x"}"#,
            r#"{"for": "999ms", "reason": "x"}"#,
            r#"{"for": "8761h", "reason": "x"}"#,
            &long,
        ] {
            assert_eq!(put(body.as_bytes()).await.problem(400), "/problems/bad-ban", "{body}");
        }
        put(b"{\"for\": \"1h\", \"reason\": \"\xff\"}").await.problem(400);
        let large = json!({ "for": "1h", "reason": "x".repeat(5000) }).to_string();
        assert_eq!(put(large.as_bytes()).await.problem(413), "about:blank");
        for query in ["limit=0", "limit=10001", "cursor=-1", "page=2"] {
            let answer = admin(server, "GET", &format!("/admin/bans?{query}")).await;
            assert_eq!(answer.problem(400), "/problems/bad-page", "{query}");
        }
        admin(server, "GET", "/admin/bans/alice").await.problem(404);
    })
    .await;
}

#[tokio::test]
async fn ban_holds_on_every_server_and_after_restart() {
    let redis = Redis::start().await;
    let flags = [&["--quota", "1/12h", "--ban", "100/24h:1h"], &STRICT[4..]].concat();
    let servers = [on_redis(&redis, &flags), on_redis(&redis, &flags)];
    // The second server knows that mallory's window is full for hours.
    assert_eq!(servers[1].order("iphone", "mallory").await.status, 201);
    servers[1].order("iphone", "mallory").await.problem(429);
    impose(&servers[0], "mallory", "24h", "by hand").await;
    impose(&servers[0], "carol", "24h", "by hand").await;
    assert_banned(&order_until_not(&servers[1], "mallory", 429).await, 24 * 3600);
    assert_banned(&servers[1].order("iphone", "carol").await, 24 * 3600);
    assert_eq!(admin(&servers[1], "DELETE", "/admin/bans/carol").await.status, 204);
    assert_eq!(order_until_not(&servers[0], "carol", 403).await.status, 201);

    servers.into_iter().for_each(|server| drop(stop(server)));
    let again = on_redis(&redis, &flags);
    assert_banned(&again.order("iphone", "mallory").await, 24 * 3600);
    for key in redis.run::<Vec<String>>(&["KEYS", "*=mallory*"]).await {
        assert!(ttl(&redis, key.as_bytes()).await > 0, "{key} stays for ever");
    }
}

#[tokio::test]
async fn on_a_cluster_bans_hold_and_are_not_listed() {
    let cluster = Cluster::start().await;
    let urls: Vec<String> = cluster.nodes.iter().map(Redis::url).collect();
    let more = ["--redis", &urls.join(","), "--response-timeout", "10s", "--min-replicas", "0"];
    let server = alone(&[&STRICT[..], &more].concat());
    assert_eq!(admin(&server, "GET", "/admin/bans").await.problem(501), "/problems/no-list");
    for user in ["alice", "bob", "carol", "dave"] {
        let path = format!("/admin/bans/{user}");
        order_until_not(&server, user, 201).await.problem(409);
        server.order("iphone", user).await.problem(403);
        assert_eq!(admin(&server, "GET", &path).await.json()["reason"], "strikes");
        assert_eq!(admin(&server, "DELETE", &path).await.status, 204);
        impose(&server, user, "1h", "by hand").await;
        server.order("iphone", user).await.problem(403);
    }
}
