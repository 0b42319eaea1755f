//! Bans in the seckill example: by strikes, and by hand through the admin listener.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use http::request::Builder;
use serde_json::{Value, json};
use test_support::Redis;
use test_support::server_process::{Answer, Server};
use tokio::time::{Duration, Instant, sleep};

const TOKEN: &str = "0123456789abcdef-the-token";
const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
/// The first strike is a ban of an hour.
const STRICT: [&str; 4] = ["--quota", "2/60s", "--ban", "1/10m:1h"];

fn start(arguments: &[&str]) -> Server {
    Server::start("seckill", &[arguments, &ADMIN].concat())
}

fn start_on(redis: &Redis, arguments: &[&str]) -> Server {
    start(&[arguments, &["--redis", &redis.url(), "--response-timeout", "10s"]].concat())
}

/// Holds two servers to a promise: one that keeps everything itself and one that has a Redis.
async fn on_both(arguments: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&start(arguments)).await;
    promise(&start_on(&Redis::start().await, arguments)).await;
}

/// Begins a request that carries the token.
fn request(server: &Server, method: &str, path: &str) -> Builder {
    server.admin_request(method, path).header("authorization", format!("Bearer {TOKEN}"))
}

async fn admin(server: &Server, method: &str, path: &str) -> Answer {
    server.send(request(server, method, path)).await
}

async fn impose(server: &Server, user: &str, length: &str, reason: &str) -> Value {
    let body = json!({ "for": length, "reason": reason }).to_string();
    let path = format!("/admin/bans/{user}");
    let answer = server.send_body(request(server, "PUT", &path), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Checks that this is the answer to someone who is banned for about so long.
fn assert_banned(answer: &Answer, seconds: u64) {
    assert!(answer.problem(403).ends_with("#abnormal-usage-detected"), "{answer:?}");
    assert_eq!(answer.json()["violated-policies"], json!(["user"]));
    // A busy machine may take its time between the ban and the answer.
    assert!((seconds - 60..=seconds).contains(&answer.retry_after()), "{answer:?}");
}

/// Orders until the answer is no longer this one.
async fn order_until_not(server: &Server, user: &str, status: u16) -> Answer {
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
async fn who_runs_into_the_quota_too_often_is_banned_and_others_are_not() {
    on_both(&STRICT, async |server| {
        assert_eq!(server.order("iphone", "mallory").await.status, 201);
        server.order("iphone", "mallory").await.problem(409);
        for _ in 0..3 {
            let banned = server.order("iphone", "mallory").await;
            assert_banned(&banned, 3600);
            assert!(!String::from_utf8_lossy(&banned.body).contains("strikes"));
            assert!(banned.headers.get("ratelimit").is_none(), "the quota is not the reason");
        }
        assert_eq!(server.order("iphone", "alice").await.status, 201);

        let ban = admin(server, "GET", "/admin/bans/mallory").await;
        assert_eq!(ban.status, 200);
        let ban = ban.json();
        assert_eq!((&ban["user"], &ban["reason"]), (&"mallory".into(), &"strikes".into()));
        let left = ban["remaining_seconds"].as_u64().unwrap();
        assert!((3540..=3600).contains(&left), "{ban}");
        let until: jiff::Timestamp = ban["until"].as_str().unwrap().parse().unwrap();
        let left = until.duration_since(jiff::Timestamp::now());
        assert!((3500..=3601).contains(&left.as_secs()), "{ban}");
        let listed = admin(server, "GET", "/admin/bans").await.json();
        assert_eq!(listed["bans"].as_array().unwrap().len(), 1);
        assert_eq!(listed["bans"][0]["user"], "mallory");
        admin(server, "GET", "/admin/bans/alice").await.problem(404);
    })
    .await;
}

#[tokio::test]
async fn hammering_on_one_window_is_one_strike_and_the_next_window_s_a_ban() {
    on_both(&["--quota", "1/1s", "--ban", "2/1h:1h"], async |server| {
        let mut statuses = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(30);
        while statuses.last() != Some(&403) {
            assert!(Instant::now() < deadline, "no ban: {statuses:?}");
            statuses.push(server.order("iphone", "mallory").await.status.as_u16());
        }
        let first = statuses.iter().position(|status| *status == 429).expect("a first strike");
        // Two strikes in two windows: the second came after at least one more admission.
        assert!(statuses[first..].contains(&409), "{statuses:?}");
        assert!(statuses.iter().all(|it| [201, 409, 429, 403].contains(it)), "{statuses:?}");
    })
    .await;
}

#[tokio::test]
async fn who_waits_as_long_as_told_is_let_in_again() {
    on_both(&["--quota", "1/1s", "--ban", "1/10m:2s"], async |server| {
        assert_eq!(server.order("iphone", "mallory").await.status, 201);
        let banned = order_until_not(server, "mallory", 409).await;
        banned.problem(403);
        assert!(banned.retry_after() <= 2);
        sleep(Duration::from_secs(banned.retry_after())).await;
        server.order("iphone", "mallory").await.problem(409);
    })
    .await;
}

#[tokio::test]
async fn bans_are_imposed_shown_listed_and_lifted_by_hand() {
    on_both(&STRICT, async |server| {
        assert_eq!(admin(server, "GET", "/admin/bans").await.json(), json!({ "bans": [] }));
        let none = admin(server, "GET", "/admin/bans/mallory").await;
        assert_eq!(none.problem(404), "/problems/not-banned");
        admin(server, "DELETE", "/admin/bans/mallory").await.problem(404);

        let ban = impose(server, "mallory", "1h", "sells \"accounts\"\n陈").await;
        assert_eq!((&ban["user"], &ban["remaining_seconds"]), (&"mallory".into(), &3600.into()));
        assert_eq!(ban["reason"], "sells \"accounts\"\n陈");
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
        admin(server, "DELETE", "/admin/bans/mallory").await.problem(404);
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
        for query in ["limit=0", "limit=10001", "limit=x", "cursor=", "cursor=-1", "page=2"] {
            let answer = admin(server, "GET", &format!("/admin/bans?{query}")).await;
            assert_eq!(answer.problem(400), "/problems/bad-page", "{query}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_ban_only_lengthens() {
    on_both(&STRICT, async |server| {
        impose(server, "mallory", "2h", "first").await;
        let stands = impose(server, "mallory", "1h", "shorter").await;
        assert_eq!(stands["reason"], "first");
        assert!(stands["remaining_seconds"].as_u64().unwrap() > 7000, "{stands}");
        let stands = impose(server, "mallory", "8760h", "longer").await;
        assert_eq!(stands["reason"], "longer");
        assert_eq!(stands["remaining_seconds"], 365 * 24 * 3600);
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
            ("a%20b%3Fc%23d", "a b?c#d"),
            ("%E9%99%88", "陈"),
            ("..", ".."),
            ("%2e", "."),
            ("a+b", "a+b"),
            ("*", "*"),
            (&"x".repeat(128), &"x".repeat(128)),
        ] {
            assert_eq!(impose(server, path, "1h", "odd").await["user"], user);
            assert_banned(&server.order("iphone", user).await, 3600);
            let shown = admin(server, "GET", &format!("/admin/bans/{path}")).await.json();
            assert_eq!(shown["user"], user);
            let listed = admin(server, "GET", "/admin/bans").await.json();
            assert_eq!(
                (&listed["bans"][0]["user"], &listed["bans"][1]),
                (&user.into(), &Value::Null)
            );
            assert_eq!(admin(server, "DELETE", &format!("/admin/bans/{path}")).await.status, 204);
        }
        for path in ["%ff", "%EF%BF%BD", "sha256:x", &"x".repeat(129)] {
            for method in ["GET", "PUT", "DELETE"] {
                let answer = admin(server, method, &format!("/admin/bans/{path}")).await;
                assert_eq!(answer.problem(400), "/problems/bad-user", "{path}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn without_the_token_nothing_is_told_and_nothing_done() {
    let server = start(&STRICT);
    impose(&server, "mallory", "1h", "stays").await;
    let longer = format!("{TOKEN}x");
    let wrong = TOKEN.replace("the", "The");
    let values = [
        None,
        Some(String::new()),
        Some("Bearer".into()),
        Some("Bearer ".into()),
        Some(format!("Basic {TOKEN}")),
        Some(TOKEN.into()),
        Some(format!("Bearer {wrong}")),
        Some(format!("Bearer {longer}")),
        Some(format!("Bearer {}", &TOKEN[1..])),
        Some(format!("Bearer {}", TOKEN.to_uppercase())),
    ];
    for value in values {
        for (method, path) in [
            ("GET", "/admin/bans"),
            ("GET", "/admin/bans/mallory"),
            ("PUT", "/admin/bans/alice"),
            ("DELETE", "/admin/bans/mallory"),
            ("POST", "/admin/bans"),
            ("GET", "/nowhere"),
        ] {
            let mut request = server.admin_request(method, path);
            if let Some(value) = &value {
                request = request.header("authorization", value);
            }
            let body = r#"{"for": "1h", "reason": ""}"#;
            let refused = server.send_body(request, body).await;
            assert_eq!(refused.problem(401), "/problems/no-token", "{value:?}");
            assert_eq!(refused.header("www-authenticate"), "Bearer");
        }
    }
    let twice = request(&server, "GET", "/admin/bans").header("authorization", "Bearer x");
    server.send(twice).await.problem(401);
    let listed = admin(&server, "GET", "/admin/bans").await.json();
    assert_eq!((&listed["bans"][0]["user"], &listed["bans"][1]), (&"mallory".into(), &Value::Null));
}

#[tokio::test]
async fn every_error_of_the_admin_listener_is_a_problem_document() {
    on_both(&STRICT, async |server| {
        let put = async |body: Vec<u8>| {
            server.send_body(request(server, "PUT", "/admin/bans/alice"), body).await
        };
        let long = json!({ "for": "1h", "reason": "x".repeat(501) }).to_string();
        for (body, part) in [
            ("", "EOF"),
            ("1h", "expected an object"),
            (r#"{"for": "1h"}"#, "missing field `reason`"),
            (r#"{"reason": "x"}"#, "missing field `for`"),
            (r#"{"for": 3600, "reason": "x"}"#, "expected a string"),
            (r#"{"for": "1h", "reason": "x", "until": 1}"#, "unknown field `until`"),
            (r#"{"for": "soon", "reason": "x"}"#, "`for`: it is not a length of time"),
            (r#"{"for": "-1h", "reason": "x"}"#, "`for`: it is not a length of time"),
            (r#"{"for": "0s", "reason": "x"}"#, "`for`: it is shorter than a second"),
            (r#"{"for": "999ms", "reason": "x"}"#, "`for`: it is shorter than a second"),
            (r#"{"for": "8761h", "reason": "x"}"#, "`for`: it is longer than a year"),
            (&long, "`reason`: it is longer than 500 bytes"),
        ] {
            let answer = put(body.into()).await;
            assert_eq!(answer.problem(400), "/problems/bad-ban", "{body}");
            let json = answer.json();
            assert!(json["detail"].as_str().unwrap().contains(part), "{body}: {json}");
        }
        put(b"{\"for\": \"1h\", \"reason\": \"\xff\"}".into()).await.problem(400);
        let large = json!({ "for": "1h", "reason": "x".repeat(5000) }).to_string();
        assert_eq!(put(large.into()).await.problem(413), "/problems/ban-too-large");
        admin(server, "GET", "/admin/bans/alice").await.problem(404);

        for path in ["/", "/admin/bans/", "/admin/bans/a/b", "/seckill/iphone", "/healthz"] {
            admin(server, "GET", path).await.problem(404);
        }
        let wrong = admin(server, "POST", "/admin/bans/alice").await;
        wrong.problem(405);
        assert_eq!(wrong.header("allow"), "GET,HEAD,PUT,DELETE");
        // The shop itself has nothing to administer.
        for method in ["GET", "PUT", "DELETE"] {
            let request = server.request(method, "/admin/bans/alice");
            let token = format!("Bearer {TOKEN}");
            server.send(request.header("authorization", token)).await.problem(404);
        }
    })
    .await;
}

#[tokio::test]
async fn a_ban_of_one_server_holds_on_the_other_whatever_that_one_remembers() {
    let redis = Redis::start().await;
    let flags = ["--quota", "1/12h", "--ban", "100/24h:1h"];
    let servers = [start_on(&redis, &flags), start_on(&redis, &flags)];
    impose(&servers[0], "carol", "24h", "by hand").await;
    assert_banned(&servers[1].order("iphone", "carol").await, 24 * 3600);

    // The second server knows that mallory's window is full for hours.
    assert_eq!(servers[1].order("iphone", "mallory").await.status, 201);
    servers[1].order("iphone", "mallory").await.problem(429);
    impose(&servers[0], "mallory", "24h", "by hand").await;
    assert_banned(&order_until_not(&servers[1], "mallory", 429).await, 24 * 3600);
    let shown = admin(&servers[1], "GET", "/admin/bans/mallory").await.json();
    assert_eq!(shown["reason"], "by hand");

    assert_eq!(admin(&servers[1], "DELETE", "/admin/bans/carol").await.status, 204);
    admin(&servers[0], "GET", "/admin/bans/carol").await.problem(404);
    assert_eq!(order_until_not(&servers[1], "carol", 403).await.status, 201);
}

#[tokio::test]
async fn a_restart_forgets_no_ban() {
    let redis = Redis::start().await;
    let first = start_on(&redis, &STRICT);
    impose(&first, "mallory", "24h", "by hand").await;
    first.signal("TERM");
    assert!(first.stopped().0.success());
    let second = start_on(&redis, &STRICT);
    assert_banned(&second.order("iphone", "mallory").await, 24 * 3600);
    assert_eq!(admin(&second, "GET", "/admin/bans/mallory").await.json()["reason"], "by hand");
    for key in redis.run::<Vec<String>>(&["KEYS", "*=mallory*"]).await {
        assert!(redis.run::<i64>(&["TTL", &key]).await > 0, "{key} stays for ever");
    }
}
