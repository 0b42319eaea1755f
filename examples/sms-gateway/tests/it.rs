//! The gateway as a process, and several of them with one Redis.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempPath;
use test_support::proxy::{Fault, Proxy};
use test_support::requests::HttpResponse;
use test_support::server_process::{ADMIN, Server, cannot_start, fails, refuses, webhook};
use test_support::{Redis, eventually};
use tokio::task::JoinHandle;

const GATEWAY: &str = env!("CARGO_BIN_EXE_sms-gateway");
const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";

/// Starts a server with this limit of the receivers, that waits for Redis as long as a busy machine may need.
fn start(receiver: &str, flags: &[&str]) -> Server {
    let file = policy_file(&policies(receiver).to_string());
    let named = ["--response-timeout", "10s", "--policies", file.to_str().unwrap()];
    Server::start(GATEWAY, &[&named, &ADMIN[..], flags].concat())
}

fn policy_file(text: &str) -> TempPath {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(&file, text).unwrap();
    file.into_temp_path()
}

fn policies(receiver: &str) -> Value {
    json!({
        "institution_share": 100,
        "institutions": { "bank": "99/1h", "shop": "99/1h" },
        "channels": { "otp": "99/1h" },
        "destinations": { "+1": "99/1h", "+49": "99/1h" },
        "receiver": receiver,
    })
}

fn spawn_sms(server: &Server, institution: &str, to: &str) -> JoinHandle<HttpResponse> {
    let body = json!({ "institution": institution, "channel": "otp", "to": to, "text": "Hello" });
    server.spawn_body(server.request("POST", "/sms"), body.to_string())
}

async fn sms(server: &Server, institution: &str, to: &str) -> HttpResponse {
    spawn_sms(server, institution, to).await.unwrap()
}

async fn put(server: &Server, path: &str, body: &str) -> u16 {
    server.ask("PUT", path, body).await.status.as_u16()
}

async fn state(server: &Server) -> Value {
    server.ask("GET", "/state", "").await.json()
}

async fn receiver_is(server: &Server, limit: &str) {
    eventually(&format!("the receivers have {limit}"), async || {
        server.ask("GET", "/policies", "").await.json()["policies"]["receiver"] == limit
    })
    .await;
}

/// Sends 40 messages to one receiver through two servers at once. Returns how many were sent; only the
/// receiver's limit may stop any.
async fn sent_by_both(servers: [&Server; 2], to: &str) -> usize {
    let messages: Vec<_> = (0..40).map(|it| spawn_sms(servers[it % 2], "bank", to)).collect();
    let mut sent = 0;
    for message in messages {
        let answer = message.await.unwrap();
        sent += usize::from(answer.status == 202);
        if answer.status != 202 {
            assert!(answer.problem(429).ends_with("#quota-exceeded"));
            assert_eq!(answer.json()["violated-policies"], json!(["receiver"]));
        }
    }
    sent
}

#[tokio::test]
async fn a_fleet_holds_a_receiver_to_one_limit_also_after_a_change() {
    let redis = Redis::start().await;
    let url = redis.url();
    let flags = ["--redis", &url];
    let [one, two] = [start("9/1h", &flags), start("9/1h", &flags)];
    one.send(one.request("PUT", "/policies/receiver")).await.problem(404);
    one.send(one.admin_request("PUT", "/policies/receiver")).await.problem(401);
    assert_eq!(put(&one, "/policies/receiver", "7/10m").await, 200);
    receiver_is(&two, "7/10m").await;
    assert_eq!(sent_by_both([&one, &two], ALICE).await, 7);
    // A server that knows only the new policies, and none of its file.
    let late = start("1/1s", &flags);
    receiver_is(&late, "7/10m").await;
    assert_eq!(sent_by_both([&one, &late], ALICE).await, 0);
    assert_eq!(put(&late, "/policies/receiver", "10/10m").await, 200);
    receiver_is(&one, "10/10m").await;
    assert_eq!(sent_by_both([&one, &late], ALICE).await, 3);
    // With the sums of the budget.
    assert_eq!(redis.run::<usize>(&["ZCARD", "sms:{=bank}:institution:1h:budget"]).await, 11);

    // One that has not seen a change can't undo it.
    two.signal("STOP");
    assert_eq!(put(&one, "/policies/institutions/post", "1/1h").await, 200);
    two.signal("CONT");
    let mut next = json!({ "version": 0, "policies": policies("5/1h") });
    let conflict = two.ask("PUT", "/policies", &next.to_string()).await;
    assert_eq!(conflict.problem(409), "/problems/not-changed");
    let is_known = async || sms(&two, "post", BOB).await.status == 202;
    eventually("it knows the new institution", is_known).await;
    // With the present version it replaces all.
    next["version"] = conflict.json()["version"].clone();
    assert_eq!(put(&two, "/policies", &next.to_string()).await, 200);
    receiver_is(&late, "5/1h").await;
    assert_eq!(sms(&late, "post", BOB).await.status, 403);
    for key in redis.run::<Vec<String>>(&["KEYS", "*"]).await {
        let ttl: i64 = redis.run(&["TTL", &key]).await;
        assert!((1..=30 * 24 * 3600).contains(&ttl), "{key} has {ttl}");
    }
}

#[tokio::test]
async fn a_server_outlives_its_redis_and_takes_it_back() {
    let mut redis = Redis::start().await;
    let url = redis.url();
    let local = start("2/1h", &["--redis", &url]);
    let closed = start("2/1h", &["--redis", &url, "--on-failure", "closed"]);
    assert_eq!(put(&local, "/policies/receiver", "3/1h").await, 200);
    assert_eq!(sms(&local, "bank", ALICE).await.status, 202);
    receiver_is(&closed, "3/1h").await;
    redis.kill();

    assert_eq!(sent_by_both([&local, &local], ALICE).await, 2);
    let refused = sms(&closed, "bank", BOB).await;
    assert!(refused.problem(503).ends_with("#temporary-reduced-capacity"));
    assert!(refused.retry_after().is_some());
    let unchanged = local.ask("PUT", "/policies/receiver", "9/1h").await;
    assert!(unchanged.status == 503 && unchanged.body.contains("Nothing was changed"));
    let is_stale =
        async |server: &Server| server.ask("GET", "/policies", "").await.json()["stale"] == true;
    eventually("it is known to be away", async || is_stale(&local).await).await;
    receiver_is(&local, "3/1h").await;

    redis.start_again();
    redis.ready().await;
    let put_again = async || put(&local, "/policies/receiver", "4/1h").await == 200;
    eventually("it can be changed again", put_again).await;
    receiver_is(&closed, "4/1h").await;
    eventually("Redis decides again", async || sms(&closed, "bank", BOB).await.status == 202).await;
    assert!(!is_stale(&local).await);
    // What was sent before and meanwhile counts, although this Redis has lost its data.
    assert_eq!(sent_by_both([&local, &local], ALICE).await, 1);
    assert!(!local.stop().contains(&ALICE[1..10]), "receivers do not belong in logs at info");
}

#[tokio::test]
async fn messages_wait_on_redis_and_an_outage_ends_the_wait() {
    for (on_failure, status) in [("closed", 503), ("open", 202)] {
        let mut redis = Redis::start().await;
        let url = redis.url();
        let flags = ["--redis", &url, "--hold", "60s", "--on-failure", on_failure];
        let server = start("2/1s,4/50s", &flags);
        for _ in 0..4 {
            // Two at once, and two after a second.
            assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
        }
        let waiting = [(); 3].map(|()| spawn_sms(&server, "bank", ALICE));
        eventually("they wait", async || state(&server).await["waiting"]["bank"] == 3).await;
        redis.kill();
        for message in waiting {
            assert_eq!(message.await.unwrap().status, status, "{on_failure}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_begins_once_and_is_over_once_at_the_latest_with_the_server() {
    let (url, taken) = webhook().await;
    let flags = ["--alert-window", "500ms", "--alert-least", "5", "--alert-webhook", &url];
    let server = start("2/1h", &flags);
    sms(&server, "bank", ALICE).await;
    let mut windows = 0;
    // The flood goes on for some windows after the alert has begun, and until the end.
    while windows < 3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        for _ in 0..10 {
            sms(&server, "shop", ALICE).await;
        }
        windows += usize::from(state(&server).await["alerts"] == json!(["receiver"]));
    }
    let logs = server.stop();
    let lines: Vec<&str> = logs.lines().filter(|line| line.contains("refuses too much")).collect();
    assert_eq!(lines.len(), 2, "{logs}");
    assert!(lines[0].contains("alert begun") && lines[0].contains("shop"), "{logs}");
    assert!(lines[1].contains("alert over") && !logs.contains("secret-path"), "{logs}");
    let taken = taken.lock().unwrap();
    let [begun, over] = &taken[..] else { panic!("two alerts: {taken:?}") };
    assert_eq!(
        ["alert", "level", "institution"].map(|it| &begun[it]),
        ["begun", "receiver", "shop"]
    );
    assert!(over["alert"] == "over" && over["id"] == begun["id"], "{taken:?}");
}

#[tokio::test]
async fn logs_name_receivers_at_debug_only_and_no_caller_forges_a_line() {
    for (level, named) in [("info", false), ("info,sms_gateway=debug", true)] {
        let server = Server::start_logging(GATEWAY, level, &ADMIN);
        sms(&server, "bank", ALICE).await;
        put(&server, "/policies/channels/x%0a2026-01-01%20forged%1b", "1/1s\nforged").await;
        sms(&server, "a\nforged\u{1b}", ALICE).await;
        let logs = server.stop();
        for key in [&ALICE[1..10], "bank", "otp"] {
            assert_eq!(logs.contains(key), named, "{level} {key}: {logs}");
        }
        let forged = |line: &str| line.starts_with("forged") || line.starts_with("2026-01-01 f");
        assert!(!logs.lines().any(forged) && !logs.contains('\u{1b}'), "{logs}");
        assert!(!logs.contains("Hello"), "{logs}");
    }
}

/// Also if no connection keeps the server running.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_under_way_in_redis_is_sent_before_the_end() {
    for has_left in [true, false] {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        let flags = ["--response-timeout", "10s", "--hold", "60s", "--redis", &proxy.url()];
        let server = Server::start_logging(GATEWAY, "info,sms_gateway=debug", &flags);
        sms(&server, "bank", BOB).await;
        proxy.set(Fault::Delay(Duration::from_millis(500)));
        let asked = redis.call_count("evalsha").await;
        let message = spawn_sms(&server, "bank", ALICE);
        eventually("Redis counts it", async || redis.call_count("evalsha").await > asked).await;
        if has_left {
            message.abort();
        }
        assert_eq!(server.stop().matches("handed to the downstream").count(), 2, "{has_left}");
        assert!(has_left || message.await.unwrap().status == 202);
    }
}

#[test]
fn a_failed_start_names_the_way_out() {
    cannot_start(GATEWAY);
    refuses(
        GATEWAY,
        &[(&["--on-failure", "closed"], "--redis"), (&["--alert-above", "101"], "101")],
    );
    let good = policies("5/1s").to_string();
    for (text, part) in [
        (good.replace("5/1s", "5/second"), "receiver: quota number 1"),
        (good.replace("channels", "chanels"), "unknown field `chanels`"),
    ] {
        let file = policy_file(&text);
        let named = ["--listen", "127.0.0.1:0", "--policies", file.to_str().unwrap()];
        let logs = fails(GATEWAY, &named, 1, part);
        assert!(logs.contains("hint: "), "{part}: {logs}");
    }
}
