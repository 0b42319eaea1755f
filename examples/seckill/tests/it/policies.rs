//! Policies from a file, which the server reads again on SIGHUP.

use test_support::Redis;
use test_support::policy_file::{BROKEN, PolicyFile, READ_AGAIN};
use test_support::server_process::{Server, refuses, run};

use crate::{SECKILL, TOKEN, admin_request, alone, on_redis, stop};

/// Sends orders until one is denied, and returns how many were admitted.
async fn admitted(server: &Server, user: &str) -> usize {
    let mut count = 0;
    while server.order("none-such", user).await.status == 404 {
        count += 1;
    }
    count
}

/// Returns the policies that a denial of this user names.
async fn denied_by(server: &Server, user: &str) -> String {
    let denial = server.order("none-such", user).await;
    denial.problem(429);
    denial.header("ratelimit-policy").to_owned()
}

#[tokio::test]
async fn sighup_changes_the_quota_and_keeps_the_log() {
    let redis = Redis::start().await;
    for store in [None, Some(&redis)] {
        let file = PolicyFile::new("policies.toml", "[policies]\nuser = '3/1h'\nip = '1000/60s'\n");
        let server = match store {
            None => alone(&file.flags()),
            Some(redis) => on_redis(redis, &file.flags()),
        };
        assert_eq!(admitted(&server, "alice").await, 3);
        file.replace("[policies]\nuser = '5/1h'\nip = '1000/60s'\n", &server);
        server.logs_until(READ_AGAIN, 1).await;
        assert_eq!(admitted(&server, "alice").await, 2, "three are in the log");
        // The new penalty holds too.
        let text = "[policies]\nuser = { quotas = '5/1h', penalty = '1/1h:1h' }\nip = '900/60s'";
        file.replace(text, &server);
        server.logs_until(READ_AGAIN, 2).await;
        let bob = admitted(&server, "bob").await;
        assert_eq!(bob, 5);
        server.order("none-such", "bob").await.problem(403);
        let logs = stop(server);
        assert_eq!(logs.matches(READ_AGAIN).count(), 2, "one line each: {logs}");
        assert!(logs.contains("user: quotas 3/1h -> 5/1h"), "{logs}");
        let both = "ip: quotas 1000/60s -> 900/60s; user: penalty none -> 1/1h:1h";
        assert!(logs.contains(both), "{logs}");
    }
}

#[tokio::test]
async fn servers_with_different_quotas_warn() {
    let redis = Redis::start().await;
    let first = on_redis(&redis, &["--quota", "5/60s"]);
    let same = on_redis(&redis, &["--quota", "5/60s"]);
    let file = PolicyFile::new("policies.toml", "[policies]\nuser = '7/60s'\nip = '100/60s'\n");
    let other = on_redis(&redis, &file.flags());
    for server in [&first, &same, &other] {
        server.logs_until("two servers have different policies", 1).await;
    }
    // Once all of them agree, none has more to say.
    file.replace("[policies]\nuser = '5/60s'\nip = '100/60s'\n", &other);
    other.logs_until(READ_AGAIN, 1).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    for server in [first, same, other] {
        let logs = stop(server);
        let lines: Vec<_> = logs.lines().filter(|it| it.contains("two servers have")).collect();
        assert!(lines.iter().all(|it| it.contains("user 5/60s") && it.contains("user 7/60s")));
        assert!(lines.len() <= 2, "{logs}");
    }
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_policies() {
    let good = "[policies]\nuser = '3/1h'\nip = '1000/60s'\n";
    let file = PolicyFile::new("policies.toml", good);
    let server = alone(&file.flags());
    assert_eq!(admitted(&server, "bob").await, 3);
    let before = denied_by(&server, "bob").await;
    let cases = [
        (
            "[policies]\nuser = '9/1h'\nip = '9/sixty'\n",
            "line 3, column 6: policy \\\"ip\\\": quota number 1",
        ),
        ("[policies]\nuser = '9/1h'\n", "in use: \\\"ip\\\""),
        (
            "[policies]\nuser = '9/1h'\nip = '1000/60s'\nvip = '9/1h'\n",
            "the policy \\\"vip\\\" is unknown",
        ),
        ("user = '9/1h'\n", "line 1, column 1: unknown field `user`"),
        ("[policies\n", "line 1, column 10"),
        ("", "missing field `policies`"),
        ("[policies]\n", "there is no policy"),
        (
            "[policies]\nuser = '9/1h'\nuser = '8/1h'\nip = '1000/60s'",
            "line 3, column 1: duplicate key",
        ),
    ];
    for (number, (text, part)) in cases.iter().enumerate() {
        file.replace(text, &server);
        server.logs_until(BROKEN, number + 1).await;
        server.logs_until(part, 1).await;
        assert_eq!(denied_by(&server, "bob").await, before);
    }
    file.remove();
    server.signal("HUP");
    server.logs_until("No such file", 1).await;
    file.replace(good, &server);
    server.logs_until("nothing has changed", 1).await;
    assert_eq!(admitted(&server, "alice").await, 3);
    let logs = stop(server);
    assert_eq!(logs.matches(BROKEN).count(), cases.len() + 1, "{logs}");
}

#[tokio::test]
async fn many_signals_end_with_the_last_file() {
    let file = PolicyFile::new("policies.json", r#"{"policies": {"user": "1/1h"}}"#);
    let server = alone(&file.flags());
    for limit in 2..50 {
        file.replace(&format!(r#"{{"policies": {{"user": "{limit}/1h"}}}}"#), &server);
    }
    server.logs_until("-> 49/1h", 1).await;
    assert_eq!(admitted(&server, "alice").await, 49);
    file.replace(r#"{"policies": {"user": "1/1h", "ip": "9/1h"}}"#, &server);
    server.logs_until("the policy \\\"ip\\\" is new: restart", 1).await;
    assert_eq!(stop(server).matches(BROKEN).count(), 1);
}

#[tokio::test]
async fn bans_by_hand_need_no_penalty_in_the_file() {
    let file = PolicyFile::new("policies.toml", "[policies]\nuser = '9/1h'\n");
    let admin = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let server = alone(&[&file.flags()[..], &admin].concat());
    let ban = admin_request(&server, "PUT", "/admin/bans/mallory");
    let ban = server.send_body(ban, r#"{"for": "1h", "reason": "a script"}"#).await;
    assert_eq!(ban.status, 200);
    for round in 1..=2 {
        server.order("none-such", "mallory").await.problem(403);
        file.replace(&format!("[policies]\nuser = '{round}/1h'\n"), &server);
        server.logs_until(READ_AGAIN, round).await;
    }
    server.order("none-such", "mallory").await.problem(403);
}

#[test]
fn a_wrong_file_prevents_the_start() {
    for (name, text, part) in [
        (
            "p.toml",
            "[policies]\nuser = '5/sixty'",
            "line 2, column 8: policy \"user\": quota number 1",
        ),
        ("p.json", "{\"policies\":\n{\"user\": 5}}", "line 2 column 10"),
        ("p.toml", "[policies]\nip = '5/60s'", "no policy \"user\""),
        ("p.toml", "[policies]\nuser = '5/60s'\nusr = '5/60s'", "the policy \"usr\" is unknown"),
        ("p.toml", "", "missing field `policies`"),
    ] {
        let file = PolicyFile::new(name, text);
        let output = run(SECKILL, &[&["--listen", "127.0.0.1:0"], &file.flags()[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{part}: {stderr}");
        assert!(stderr.contains(name), "{stderr}");
    }
    let missing = run(SECKILL, &["--listen", "127.0.0.1:0", "--policies", "/nowhere/p.toml"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nowhere/p.toml"));
    refuses(SECKILL, &[(&["--policies", "p.yaml"], ".toml or .json")]);
    for flag in [["--quota", "5/60s"], ["--ip-quota", "off"], ["--ban", "3/10m:1m"]] {
        let flags = [&flag[..], &["--policies", "p.toml"]].concat();
        let output = run(SECKILL, &flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains("--policies"), "{stderr}");
    }
}
