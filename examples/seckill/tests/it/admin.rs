//! The admin listener: who may use it, bans, quotas, and what it shows.

use crate::*;

/// The first strike is a ban of an hour.
const STRICT: &str = "--quota 2/60s --ban 1/10m:1h";

#[tokio::test]
async fn no_route_works_without_the_token() {
    let server = Server::start_in(SECKILL, &[("SECKILL_ADMIN_TOKEN", TOKEN)], &words(ADMIN)[..2]);
    assert_eq!(server.ask("GET", "/admin/bans", "").await.status, 200);
    let [basic, longer] = [format!("Basic {TOKEN}"), format!("Bearer {TOKEN}x")];
    let cut = format!("Bearer {}", &TOKEN[..20]);
    for value in ["", "Bearer ", TOKEN, &basic, &longer, &cut] {
        for path in ["bans", "bans/alice", "live", "policies/user", "nowhere"] {
            let request = server.admin_request("PUT", &format!("/admin/{path}"));
            let refused = server.send(request.header("authorization", value)).await;
            assert_eq!(refused.problem(401), "/problems/no-token", "{value:?}");
            assert_eq!(refused.headers["www-authenticate"], "Bearer");
        }
    }
    // The shop itself has nothing to administer.
    let request = server.request("GET", "/admin/bans");
    server.send(request.header("authorization", format!("Bearer {TOKEN}"))).await.problem(404);
    server.get("/live.js").await.problem(404);
    // The page needs no token, and loads no script but its own.
    let page = server.send(server.admin_request("GET", "/")).await;
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self';") && !policy.contains("unsafe"), "{policy}");
}

async fn impose(server: &Server, user: &str, reason: &str) -> Value {
    let body = json!({ "for": "1h", "reason": reason }).to_string();
    let answer = server.ask("PUT", &format!("/admin/bans/{user}"), &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Checks that a user is banned for about an hour.
async fn assert_banned(server: &Server, user: &str) {
    let answer = server.order("iphone", user).await;
    assert!(answer.problem(403).ends_with("#abnormal-usage-detected"), "{answer:?}");
    // A busy machine may take its time between the ban and the answer.
    assert!((HOUR - 60..=HOUR).contains(&answer.retry_after().unwrap()), "{answer:?}");
    assert!(!answer.body.contains("strikes"));
}

#[tokio::test]
async fn an_operator_imposes_and_lifts_bans() {
    on_both(&format!("{ADMIN} {STRICT}"), async |server| {
        let none = server.ask("DELETE", "/admin/bans/mallory", "").await;
        assert_eq!(none.problem(404), "/problems/not-banned");
        let ban = impose(server, "mallory", "sells \"accounts\"\n陈").await;
        shows(&ban, json!({ "user": "mallory", "remaining_seconds": HOUR }));
        let listed = server.ask("GET", "/admin/bans?limit=10", "").await.json();
        assert_eq!(listed, json!({ "bans": [ban], "next": null }));
        assert_banned(server, "mallory").await;
        assert_eq!(server.ask("DELETE", "/admin/bans/mallory", "").await.status, 204);
        let is_lifted = async || server.order("iphone", "mallory").await.status == 201;
        eventually("within a second, and uncounted until then", is_lifted).await;
        let banned = number(&live(server).await["orders"][4][1]);
        assert!(banned >= 1, "counted as banned: {banned}");
        // The user in the path is the user who orders.
        for (path, user) in [("a%2Fb", "a/b"), ("%257D", "%7D"), ("%E9%99%88", "陈"), ("*", "*")] {
            assert_eq!(impose(server, path, "odd").await["user"], user);
            assert_banned(server, user).await;
        }
        for status in [404, 404, 403] {
            assert_eq!(server.order("no-such", "eve").await.status, status);
        }
        let explained = server.ask("GET", "/admin/explain/eve", "").await.json();
        assert_eq!(explained["ban"]["reason"], "strikes");
        assert_eq!(put(server, "user", r#"{"quotas": "9/60s"}"#).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_malformed_request_is_refused() {
    let server = alone(&format!("{ADMIN} {STRICT} --ip-quota off"));
    let before = policy(&server, "user").await;
    let bans = [
        "",
        r#"["1h", "x"]"#,
        r#"{"for": "1h"}"#,
        r#"{"for": 3600, "reason": "x"}"#,
        r#"{"for": "1h", "reason": "x", "until": 1}"#,
        r#"{"for": "999ms", "reason": "x"}"#,
        r#"{"for": "8761h", "reason": "x"}"#,
    ];
    let quotas = [
        "",
        "{}",
        r#"["5/60s", 1]"#,
        r#"{"quotas": 5}"#,
        r#"{"quotas": ""}"#,
        r#"{"quotas": "5/soon"}"#,
        r#"{"quotas": "5/60s", "penalty": "manual"}"#,
    ];
    let cases = [("bans/alice", "bad-ban", bans), ("policies/user", "bad-policy", quotas)];
    for (path, kind, bodies) in cases {
        for body in bodies {
            let refused = server.ask("PUT", &format!("/admin/{path}"), body).await;
            assert_eq!(refused.problem(400), format!("/problems/{kind}"), "{body}");
        }
    }
    server.ask("PUT", "/admin/bans/alice", &"x".repeat(5000)).await.problem(413);
    for path in ["%ff", "%EF%BF%BD", "sha256:x", &"x".repeat(129)] {
        for route in ["bans", "explain"] {
            let answer = server.ask("GET", &format!("/admin/{route}/{path}"), "").await;
            assert_eq!(answer.problem(400), "/problems/bad-user", "{path}");
        }
    }
    server.ask("GET", "/admin/bans/alice", "").await.problem(404);
    let body = r#"{"quotas": "5/60s"}"#;
    let refused = server.ask("DELETE", "/admin/policies/user", body).await;
    assert_eq!(refused.problem(400), "/problems/bad-policy");
    for name in ["ip", "accounts", "%ff"] {
        let refused = put(&server, name, r#"{"quotas": "5/60s"}"#).await;
        assert_eq!(refused.problem(404), "/problems/unknown-policy", "{name}");
        assert!(refused.body.contains("`accounts` be explained"), "{refused:?}");
    }
    assert_eq!(policy(&server, "user").await, before);
}

#[tokio::test]
async fn an_address_is_explained_by_the_policy_of_its_network() {
    let draw = "--accounts 1/10m --nat 127.0.0.0/8=2 --opens-in 1h --trust-proxy 127.0.0.1";
    let server = alone(&format!("{ADMIN} {draw}"));
    for (user, status) in [("alice", 202), ("bob", 202), ("carol", 429)] {
        assert_eq!(enter(&server, user).await.status, status);
    }
    let denied = json!([{ "policy": "accounts", "key": "127.0.0.1", "denials": 1 }]);
    assert_eq!(live(&server).await["offenders"], denied);
    let entry = server.request("POST", "/seckill/iphone/entries");
    let entry = entry.header("x-user-id", "2001:db8::7").header("x-forwarded-for", "2001:db8::5");
    assert_eq!(server.send(entry).await.status, 202);
    let explain = async |address: &str, policy: &str| {
        server.ask("GET", &format!("/admin/explain/{address}?policy={policy}"), "").await
    };
    for (address, policy, quota, taken) in [
        ("127.0.0.1", "accounts", "2/600s", 2),
        ("127.0.0.1", "ip", "200/60s", 2),
        ("2001:db8::%2F64", "ip", "100/60s", 1),
        ("2001:db8::6", "ip", "100/60s", 1),
        // A user may have such a name.
        ("2001:db8::7", "user", "5/60s", 1),
    ] {
        let explained = explain(address, policy).await.json();
        shows(&explained["quotas"][0], json!({ "quota": quota, "taken": taken }));
    }
    assert_eq!(explain("::1", "none").await.problem(404), "/problems/unknown-policy");
}

/// Sends orders until one is denied, and returns how many were admitted.
async fn admitted(server: &Server, user: &str) -> usize {
    let mut count = 0;
    while server.order("none-such", user).await.status == 404 {
        count += 1;
    }
    count
}

async fn put(server: &Server, name: &str, body: &str) -> HttpResponse {
    server.ask("PUT", &format!("/admin/policies/{name}"), body).await
}

/// Returns a policy as the admin listener shows it.
async fn policy(server: &Server, name: &str) -> Value {
    let shown = server.ask("GET", "/admin/policies", "").await.json();
    let policies = shown["policies"].as_array().unwrap();
    policies.iter().find(|policy| policy["name"] == name).cloned().unwrap_or_default()
}

async fn has_quotas(server: &Server, quotas: &str) {
    let has = async || policy(server, "user").await["quotas"] == quotas;
    eventually(&format!("the server has {quotas}"), has).await;
}

#[tokio::test]
async fn quotas_change_on_every_server() {
    let redis = Redis::start().await;
    let flags = format!("{ADMIN} --quota 3/60s --ban 9/1h:1h");
    let servers = [on_redis(&redis, &flags), on_redis(&redis, &flags)];
    assert_eq!(admitted(&servers[1], "alice").await, 3);
    let changed = put(&servers[0], "user", r#"{"quotas": "5/60s"}"#).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    for server in &servers {
        has_quotas(server, "5/60s").await;
        assert_eq!(policy(server, "user").await["penalty"], "9/1h:1h", "the penalty stays");
    }
    assert_eq!(admitted(&servers[1], "alice").await, 2, "three are in the log");
    // One change does not undo another, and one that has missed another is refused.
    assert_eq!(put(&servers[1], "ip", r#"{"quotas": "900/1h"}"#).await.status, 200);
    let change = async |version: &Value| {
        let body = json!({ "quotas": "6/1h", "version": version }).to_string();
        put(&servers[0], "user", &body).await
    };
    let late = change(&changed.json()["version"]).await;
    assert_eq!(late.problem(409), "/problems/not-changed");
    assert_eq!(change(&late.json()["version"]).await.status, 200);
    has_quotas(&servers[1], "6/1h").await;
    // It outlives a server.
    let [old, stopped] = servers;
    assert!(stopped.stop().contains("audit: the policies of an operator are in force"));
    let new = on_redis(&redis, &flags);
    assert_eq!(policy(&new, "user").await["quotas"], "6/1h");
    assert_eq!(policy(&new, "ip").await["quotas"], "900/1h");
    put(&new, "user", r#"{"quotas": "2/60s"}"#).await;
    has_quotas(&old, "2/60s").await;
    let newest = on_redis(&redis, &flags);
    assert_eq!([admitted(&old, "bob").await, admitted(&newest, "bob").await], [2, 0], "one log");
    let late = new.ask("DELETE", "/admin/policies/user", r#"{"version": 1}"#).await;
    assert_eq!(late.problem(409), "/problems/not-changed");
    new.ask("DELETE", "/admin/policies/user", "").await;
    has_quotas(&newest, "3/60s").await;
    // As a newer server may write them.
    let version = 9_000_000_000_000_u64;
    let newer = format!(r#"version {version} document {{"user":{{"quotas":"9/1h"}}}}"#);
    redis.command(&format!("HSET seckill:policies {newer}")).await;
    let refused = put(&new, "user", r#"{"quotas": "5/60s"}"#).await;
    assert_eq!(refused.problem(409), "/problems/policies-not-read");
    shows(&live(&new).await["policies"], json!({ "stale": true, "version": version }));
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn metrics_need_the_token_name_no_user_and_tell_a_loss() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, ADMIN);
    let placed = server.order("iphone", "alice").await.json();
    for _ in 0..6 {
        server.order("iphone", "alice").await;
    }
    for (payment, status) in [("1", 200), ("2", 409)] {
        assert_eq!(pay(&server, &placed, payment).await.status, status);
    }
    /// Waits for lines. One that ends in `{` is the beginning of one.
    async fn has(server: &Server, lines: &[&str]) {
        for line in lines {
            let is_it = |it: &str| it == *line || (line.ends_with('{') && it.starts_with(line));
            let is_shown = async || {
                let page = server.ask("GET", "/metrics", "").await;
                assert_eq!(
                    page.headers["content-type"],
                    "text/plain; version=0.0.4; charset=utf-8"
                );
                assert!(!page.body.contains("alice"), "{}", page.body);
                page.body.lines().any(is_it)
            };
            eventually(line, is_shown).await;
        }
    }
    let sold = [
        r#"sliding_window_decisions_total{policy="user",outcome="denied"} 2"#,
        r#"sliding_window_bans_total{policy="user"} 0"#,
        r#"seckill_orders_total{outcome="ordered"} 1"#,
        r#"seckill_orders_total{outcome="ordered-before"} 4"#,
        r#"seckill_payments_total{outcome="paid"} 1"#,
        r#"seckill_payments_total{outcome="already-paid"} 1"#,
        r#"seckill_payments_total{outcome="too-late"} 0"#,
        r#"seckill_stock_left{sku="iphone"} 99"#,
        r#"seckill_entries{sku="iphone"} 0"#,
        r#"seckill_turns{sku="iphone"} 0"#,
        "sliding_window_store_call_duration_seconds_bucket{",
        "seckill_ready 1",
    ];
    has(&server, &sold).await;
    let drawn = alone(&format!("{ADMIN} --opens-in 1h"));
    assert_eq!(enter(&drawn, "bob").await.status, 202);
    let entered = [r#"seckill_entries{sku="iphone"} 1"#, r#"seckill_turns{sku="iphone"} 0"#];
    has(&drawn, &entered).await;
    redis.signal("STOP");
    has(&server, &[r#"seckill_stock_left{sku="iphone"} NaN"#]).await;
    redis.signal("CONT");
    redis.command("FLUSHALL").await;
    has(&server, &[r#"seckill_stock_left{sku="iphone"} -1"#, "seckill_ready 0"]).await;
    server.send(server.admin_request("GET", "/metrics")).await.problem(401);
}
