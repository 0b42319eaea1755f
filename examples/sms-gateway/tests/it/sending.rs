//! Messages and policies over HTTP, whether the state is in process or in Redis.

use std::collections::HashSet;

use serde_json::{Value, json};
use test_support::Redis;

use crate::{ALICE, BOB, SHARE, message, sms, start, violated};

#[tokio::test]
async fn messages_go_out_until_a_level_is_full() {
    let redis = Redis::start().await;
    let url = redis.url();
    for more in [&[][..], &["--redis", &url]] {
        let server = &start(&[&SHARE[..], more].concat());
        let mut ids = HashSet::new();
        for institution in ["bank", "bank"] {
            let sent = sms(server, institution, ALICE).await;
            assert_eq!(sent.status, 202, "{sent:?}");
            assert!(ids.insert(sent.json()["message_id"].as_str().unwrap().to_owned()));
        }
        let denied = sms(server, "bank", ALICE).await;
        assert_eq!(violated(&denied), json!(["receiver-share:2/60s"]));
        assert!((1..=60).contains(&denied.retry_after()));
        assert!(!String::from_utf8_lossy(&denied.body).contains("4917"), "{denied:?}");
        assert_eq!(sms(server, "bank", BOB).await.status, 202, "others are not held up");
        assert_eq!(sms(server, "shop", ALICE).await.status, 202, "nor other institutions");
    }
}

#[tokio::test]
async fn a_malformed_message_is_refused() {
    let server = start(&[]);
    let with = |member: &str, value: Value| {
        let mut body: Value = serde_json::from_str(&message("bank", ALICE)).unwrap();
        body[member] = value;
        body.to_string()
    };
    let twice = message("bank", ALICE).replacen('{', r#"{"to":"+15550000009","#, 1);
    for (body, status, part) in [
        ("{\n  \"to\": +49\n}".to_owned(), 400, "line 2"),
        ("null".to_owned(), 422, "JSON object"),
        (twice, 422, "each once"),
        ("{\"channel\":\"otp\"}".to_owned(), 422, "institution"),
        (with("to", Value::Null), 422, "to"),
        (with("to", "+0491701234567".into()), 422, "telephone number"),
        (with("to", "+1234567890123456".into()), 422, "7 to 15 digits"),
        (with("to", "+44201234567".into()), 403, "destination"),
        (with("institution", "Bank".into()), 422, "a-z"),
        (with("institution", "stranger".into()), 403, "started with"),
        (with("channel", "made-up".into()), 422, "channels that the gateway"),
        (with("text", "ü".repeat(1601).into()), 422, "1 to 1600"),
        (with("text", "x".repeat(20_000).into()), 413, ""),
    ] {
        let answer = server.send_body(server.request("POST", "/sms"), body.clone()).await;
        answer.problem(status);
        let said = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains(part) && !said.contains("stranger"), "{body}: {said}");
    }
}
