//! Policies from a file, which the gateway reads again on SIGHUP.

use serde_json::{Value, json};
use test_support::Redis;
use test_support::policy_file::{BROKEN, PolicyFile, READ_AGAIN};
use test_support::server_process::{Server, refuses, run};

use crate::{
    ALICE, GATEWAY, configured, delete, policies_until, put, shown, sms, start, stop, violated,
};

/// Returns a file with these thresholds and institutions.
fn file(channel: &str, receiver: &str, institutions: &str) -> String {
    format!(
        "institutions = [{institutions}]\nchannels = ['otp']\ndestinations = ['+1', '+49']\n\
         [policies]\ninstitution = '100/1s'\nchannel = '{channel}'\ndestination = '100/1s'\n\
         receiver = '{receiver}'\n"
    )
}

fn names(policies: &Value) -> Vec<&str> {
    let institutions = policies["institution"]["institutions"].as_object().unwrap();
    institutions.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn sighup_changes_levels_and_lists() {
    let before = file("9/1s", "2/1h", "'bank=90/1s', 'shop'");
    let policies = PolicyFile::new("policies.toml", &before);
    let server = start(&policies.flags());
    for status in [202, 202, 429] {
        assert_eq!(sms(&server, "bank", ALICE).await.status, status);
    }
    policies.replace(&file("8/1s", "3/1h", "'bank', 'post=9/1s'"), &server);
    server.logs_until(READ_AGAIN, 1).await;
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202, "a third place");
    assert_eq!(violated(&sms(&server, "bank", ALICE).await), json!(["receiver"]));
    assert_eq!(sms(&server, "shop", ALICE).await.status, 403);
    let shown = shown(&server, "/policies").await;
    assert_eq!(names(&shown), ["bank", "post"]);
    assert_eq!(shown["institution"]["institutions"]["bank"]["configured"], "100/1s");
    assert_eq!(shown["channel"]["configured"], "8/1s");
    let logs = stop(server);
    let changes = "channel: 9/1s -> 8/1s; receiver: 2/1h -> 3/1h; institution/bank: 90/1s -> level; \
                   institution/post: none -> 9/1s; institution/shop: level -> none";
    assert!(logs.contains(changes), "{logs}");
    assert_eq!(logs.matches(READ_AGAIN).count(), 1, "{logs}");
}

#[tokio::test]
async fn changes_of_the_operator_win_over_the_file() {
    let redis = Redis::start().await;
    let text = |receiver| file("9/1s", receiver, "'bank=90/1s', 'shop'");
    let policies = PolicyFile::new("policies.toml", &text("2/1h"));
    let url = redis.url();
    let flags = [&policies.flags()[..], &["--redis", &url]].concat();
    let servers = [(); 2].map(|()| start(&flags));
    assert_eq!(put(&servers[0], "/policies/receiver", "5/1h").await.status, 200);
    assert_eq!(put(&servers[0], "/policies/institution/bank", "50/1s").await.status, 200);
    policies_until(&servers[1], |it| it["receiver"]["configured"] == "5/1h").await;
    for server in &servers {
        policies.replace(&text("7/1h"), server);
        server.logs_until(READ_AGAIN, 1).await;
        server.logs_until("receiver: 5/1h stays, by the admin listener", 1).await;
        assert_eq!(configured(server, "receiver").await, "5/1h");
    }
    // Also after a restart, and for what the operator has removed.
    assert_eq!(delete(&servers[1], "/institutions/shop").await.status, 204);
    policies_until(&servers[0], |it| names(it) == ["bank"]).await;
    policies.replace(&file("8/1s", "7/1h", "'bank=80/1s', 'shop=1/1s'"), &servers[0]);
    servers[0].logs_until("channel: 9/1s -> 8/1s", 1).await;
    servers.into_iter().for_each(|server| drop(stop(server)));
    let again = start(&flags);
    let shown = shown(&again, "/policies").await;
    assert_eq!(names(&shown), ["bank"]);
    assert_eq!(shown["institution"]["institutions"]["bank"]["configured"], "50/1s");
    assert_eq!(
        [&shown["receiver"], &shown["channel"]].map(|it| it["configured"].clone()),
        ["5/1h", "8/1s"]
    );
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_policies() {
    let good = file("9/1s", "2/1h", "'bank', 'shop'");
    let policies = PolicyFile::new("policies.toml", &good);
    let server: Server = start(&[&policies.flags()[..], &["--global", "500/1s"]].concat());
    let before = shown(&server, "/policies").await;
    let cases = [
        (
            file("9/1s", "2/hour", "'bank'"),
            "line 8, column 12: policy \\\"receiver\\\": quota number 1",
        ),
        (file("9/1s", "3/1h", "'bank=x/1s'"), "line 1, column 17"),
        (good.replace("'+49'", "'49'"), "line 3, column 23"),
        (file("9/1s", "3/1h", "'bank', 'bank=1/1s'"), "bank is there twice"),
        (file("9/1s", "3/1h", "'bank=401/1s', 'shop'"), "501 a second"),
        (good.replace("receiver", "sender"), "the policy \\\"sender\\\" is unknown"),
        (good.replace("receiver = '2/1h'", ""), "there is no policy \\\"receiver\\\""),
        (
            good.replace("'2/1h'", "{ quotas = '3/1h', penalty = 'manual' }"),
            "a penalty has no effect",
        ),
        (
            good.replace("'2/1h'", "{ quotas = '3/1h', candidates = '1/1h' }"),
            "a candidate has no effect",
        ),
        (good.replace("channels", "chanels"), "line 2, column 1: unknown field `chanels`"),
        (good.replace("channels = ['otp']", ""), "missing field `channels`"),
    ];
    for (number, (text, part)) in cases.iter().enumerate() {
        policies.replace(text, &server);
        server.logs_until(BROKEN, number + 1).await;
        server.logs_until(part, 1).await;
        assert_eq!(shown(&server, "/policies").await, before, "{text}");
    }
    policies.replace(&good, &server);
    server.logs_until("nothing has changed", 1).await;
}

#[test]
fn a_wrong_file_prevents_the_start() {
    for (text, part) in [
        (
            file("9/1s", "2/hour", "'bank'"),
            "line 8, column 12: policy \"receiver\": quota number 1",
        ),
        (file("9/1s", "2/1h", "'bank', 'bank'"), "bank is there twice"),
        (String::new(), "missing field"),
    ] {
        let policies = PolicyFile::new("policies.toml", &text);
        let flags = [&["--listen", "127.0.0.1:0"], &policies.flags()[..]].concat();
        let output = run(GATEWAY, &flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{part}: {stderr}");
    }
    refuses(
        GATEWAY,
        &[
            (&["--policies", "p.txt"], ".toml or .json"),
            (&["--policies", "p.toml", "--receiver-limit", "5/60s"], "--policies"),
            (&["--policies", "p.toml", "--institution", "bank"], "--policies"),
        ],
    );
}
