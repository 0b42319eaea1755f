//! What the SMS gateway promises over HTTP, whether its state is in process or in Redis.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "support/sms.rs"]
mod sms;

use std::collections::HashSet;

use serde_json::{Value, json};
use sms::{message, policies_until, post, put, sms, start, until, violated};
use test_support::Redis;
use test_support::server_process::Server;

const ALICE: &str = "+491701234567";
const BOB: &str = "+491701234568";

/// Holds two servers to a promise: one that keeps everything itself and one that has a Redis.
async fn on_both(arguments: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&start(arguments)).await;
    let redis = Redis::start().await;
    promise(&start(&[arguments, &["--redis", &redis.url()]].concat())).await;
}

#[tokio::test]
async fn messages_go_out_until_a_level_is_full() {
    on_both(&[], async |server| {
        let mut ids = HashSet::new();
        for institution in ["bank", "shop"] {
            let sent = sms(server, institution, "otp", ALICE).await;
            assert_eq!(sent.status, 202, "{sent:?}");
            assert!(ids.insert(sent.json()["message_id"].as_str().unwrap().to_owned()));
        }
        let denied = sms(server, "bank", "ads", ALICE).await;
        assert_eq!(violated(&denied), json!(["receiver"]));
        assert!((1..=60).contains(&denied.retry_after()));
        assert!(!String::from_utf8_lossy(&denied.body).contains("4917"), "{denied:?}");
        assert_eq!(sms(server, "bank", "otp", BOB).await.status, 202, "others are not held up");
        assert_eq!(server.get("/healthz").await.body, "ok");
    })
    .await;
}

#[tokio::test]
async fn a_message_that_one_level_refuses_takes_no_place_in_the_others() {
    let flags =
        ["--institution", "bank=3/1h", "--channel-limit", "4/1h", "--receiver-limit", "1/1h"];
    on_both(&flags, async |server| {
        assert_eq!(sms(server, "bank", "otp", ALICE).await.status, 202);
        for _ in 0..5 {
            assert_eq!(violated(&sms(server, "bank", "otp", ALICE).await), json!(["receiver"]));
        }
        assert_eq!(sms(server, "bank", "otp", BOB).await.status, 202);
        assert_eq!(sms(server, "bank", "otp", "+15550000001").await.status, 202);
        for _ in 0..5 {
            let denied = sms(server, "bank", "otp", "+15550000002").await;
            assert_eq!(violated(&denied), json!(["institution"]));
        }
        put(server, "/policies/institution/bank", "99/1h").await;
        assert_eq!(sms(server, "bank", "otp", "+15550000002").await.status, 202);
        let denied = sms(server, "bank", "otp", BOB).await;
        assert_eq!(violated(&denied), json!(["channel", "receiver"]));
    })
    .await;
}

#[tokio::test]
async fn an_empty_bucket_is_a_503_and_a_failing_downstream_gives_places_back() {
    let limits =
        ["--institution-limit", "1/1h", "--channel-limit", "1/1h", "--receiver-limit", "1/1h"];
    on_both(&[&limits[..], &["--global", "3/1h"]].concat(), async |server| {
        put(server, "/downstream", r#"{"errors":"100%"}"#).await;
        let failed = sms(server, "bank", "otp", ALICE).await;
        assert!(failed.problem(503).ends_with("#temporary-reduced-capacity"));
        assert_eq!(failed.retry_after(), 1);
        put(server, "/downstream", r#"{"errors":"0%"}"#).await;
        assert_eq!(sms(server, "bank", "otp", ALICE).await.status, 202, "its place was free");
        let all = violated(&sms(server, "bank", "otp", ALICE).await);
        assert_eq!(all, json!(["institution", "channel", "receiver"]));
        let empty = sms(server, "shop", "ads", BOB).await;
        assert!(empty.problem(503).ends_with("#temporary-reduced-capacity"));
        assert!((1000..=1200).contains(&empty.retry_after()), "{empty:?}");
    })
    .await;
}

#[tokio::test]
async fn every_error_is_a_problem_document() {
    on_both(&[], async |server| {
        let without = |member: &str, value: Option<Value>| {
            let mut body: Value = serde_json::from_str(&message("bank", "otp", ALICE)).unwrap();
            match value {
                Some(value) => body[member] = value,
                None => drop(body.as_object_mut().unwrap().remove(member)),
            }
            body.to_string()
        };
        let twice = message("bank", "otp", ALICE).replace("{", r#"{"to":"+15550000009","#);
        let mut cases = vec![
            (String::new(), 400, "line 1"),
            ("{".to_owned(), 400, "line 1"),
            ("{\n  \"to\": +49\n}".to_owned(), 400, "line 2"),
            ("null".to_owned(), 422, "JSON object"),
            ("\"+491701234567\"".to_owned(), 422, "JSON object"),
            (twice, 422, "each once"),
            (without("institution", Some("Bank".into())), 422, "a-z"),
            (without("channel", Some("a b".into())), 422, "a-z"),
            (without("channel", Some("x".repeat(65).into())), 422, "1 to 64"),
            (without("text", Some("".into())), 422, "1 to 1600"),
            (without("text", Some("ü".repeat(1601).into())), 422, "1 to 1600"),
            (without("text", Some("x".repeat(20_000).into())), 413, ""),
            (without("institution", Some("nobody".into())), 403, "started with"),
        ];
        for member in ["institution", "channel", "to", "text"] {
            cases.push((without(member, None), 422, member));
            cases.push((without(member, Some(5.into())), 422, member));
            cases.push((without(member, Some(Value::Null)), 422, member));
        }
        for number in [
            "",
            "+",
            "491701234567",
            "0049170123456",
            "+0491701234567",
            "+49170123456x",
            "+49 1701234567",
        ] {
            cases.push((without("to", Some(number.into())), 422, "telephone number"));
        }
        cases.push((without("to", Some("+123456".into())), 422, "7 to 15 digits"));
        cases.push((without("to", Some("+1234567890123456".into())), 422, "7 to 15 digits"));
        for (body, status, part) in cases {
            let answer = post(server, body.clone()).await;
            answer.problem(status);
            let said = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
            assert!(said.contains(part), "{body}: {said}");
            assert!(!said.contains("nobody") && !said.contains("1701234567 "), "{said}");
        }
        post(server, vec![b'"', 0xff, b'"']).await.problem(400);
        post(server, without("text", Some("ü".repeat(1600).into()))).await;

        server.get("/nowhere").await.problem(404);
        server.get("/sms").await.problem(405);
        server.send(server.request("DELETE", "/policies/channel")).await.problem(405);
    })
    .await;
}

#[tokio::test]
async fn policies_change_while_the_server_runs() {
    on_both(&["--global", "500/1s"], async |server| {
        let before = server.get("/policies").await.json();
        let expected = json!({
            "version": 0,
            "stale": false,
            "global": { "configured": "500/1s", "alert": false },
            "institution": {
                "configured": "100/1s",
                "effective": "100/1s",
                "alert": false,
                "institutions": {
                    "bank": { "configured": "100/1s", "effective": "100/1s" },
                    "shop": { "configured": "100/1s", "effective": "100/1s" },
                },
            },
            "channel": { "configured": "150/1s", "effective": "150/1s", "alert": false },
            "receiver": { "configured": "2/60s,10/1h", "effective": "2/60s,10/1h", "alert": false },
        });
        assert_eq!(before, expected);

        for (path, body, status, part) in [
            ("receiver", "", 422, "LIMIT/WINDOW"),
            ("receiver", "0/1s", 422, "limit is zero"),
            ("receiver", "5/60s,1/0s", 422, "quota number 2: the window is zero"),
            ("receiver", "\"5/60s", 400, "JSON"),
            ("receiver", "{\"limit\":5}", 422, "LIMIT/WINDOW"),
            ("sender", "5/60s", 404, "institution/NAME"),
            ("institution/nobody", "5/60s", 404, "started with"),
            ("institution/%ff", "5/60s", 404, "institution/NAME"),
            ("institution%2Fbank%2F", "5/60s", 404, "institution/NAME"),
            ("institution", "251/1s", 409, "502 a second"),
            ("institution/bank", "401/1s", 409, "bank 401/1s + shop 100/1s"),
        ] {
            let refused = put(server, &format!("/policies/{path}"), body).await;
            refused.problem(status);
            let said = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(said.contains(part), "{path} {body}: {said}");
            assert_eq!(server.get("/policies").await.json(), before, "{path} {body}");
        }

        assert_eq!(sms(server, "bank", "otp", ALICE).await.status, 202);
        let changed = put(server, "/policies/receiver", "\"1/1h\"").await;
        assert_eq!(changed.status, 200);
        assert_eq!(changed.json(), json!({ "configured": "1/1h", "effective": "1/1h" }));
        violated(&sms(server, "bank", "otp", ALICE).await);
        put(server, "/policies/receiver", "3/1h").await;
        assert_eq!(sms(server, "bank", "otp", ALICE).await.status, 202);
        assert_eq!(put(server, "/policies/institution/bank", "400/1s").await.status, 200);
        let after = server.get("/policies").await.json();
        assert_eq!(after["version"], 3);
        assert_eq!(after["institution"]["institutions"]["bank"]["configured"], "400/1s");
        assert_eq!(after["institution"]["configured"], "100/1s");
    })
    .await;
}

#[tokio::test]
async fn the_downstream_has_knobs() {
    on_both(&["--downstream-latency", "7ms", "--downstream-errors", "2.5%"], async |server| {
        let shown = server.get("/downstream").await.json();
        assert_eq!((&shown["latency"], &shown["errors"]), (&"7ms".into(), &"2.5%".into()));
        for (body, status) in [
            ("", 400),
            ("{\"errors\":0.3}", 400),
            ("{\"error\":\"30%\"}", 400),
            ("{\"errors\":\"30\"}", 422),
            ("{\"latency\":\"-1s\"}", 422),
        ] {
            put(server, "/downstream", body).await.problem(status);
        }
        let shown = put(server, "/downstream", r#"{"latency":"0ms"}"#).await.json();
        assert_eq!((&shown["latency"], &shown["errors"]), (&"0ms".into(), &"2.5%".into()));
    })
    .await;
}

#[tokio::test]
async fn thresholds_follow_the_downstream() {
    let window = ["--adapt-window", "1s", "--adapt", "institution", "--adapt", "channel"];
    let roomy = ["--receiver-limit", "99999/1h", "--downstream-latency", "0ms"];
    on_both(&[&window[..], &roomy[..]].concat(), async |server| {
        let shown = async || server.get("/policies").await.json();
        put(server, "/downstream", r#"{"errors":"100%"}"#).await;
        until(async || {
            sms(server, "bank", "otp", ALICE).await;
            shown().await["institution"]["effective"] != "100/1s"
        })
        .await;
        let lowered = shown().await;
        assert_eq!(lowered["institution"]["configured"], "100/1s");
        assert_eq!(lowered["receiver"]["effective"], lowered["receiver"]["configured"]);
        assert_ne!(lowered["channel"]["effective"], lowered["channel"]["configured"]);
        put(server, "/downstream", r#"{"errors":"0%"}"#).await;
        until(async || {
            sms(server, "bank", "otp", ALICE).await;
            shown().await["channel"]["effective"] == "150/1s"
        })
        .await;
        assert_eq!(shown().await["institution"]["effective"], "100/1s");
    })
    .await;
}

#[tokio::test]
async fn an_alert_is_logged_when_it_begins_and_when_it_is_over() {
    let flags = ["--alert-window", "2s", "--alert-least", "5", "--receiver-limit", "1/1h"];
    let redis = Redis::start().await;
    for store in [&[][..], &["--redis", &redis.url()]] {
        let server = start(&[&flags[..], store].concat());
        until(async || {
            sms(&server, "bank", "otp", ALICE).await;
            server.get("/policies").await.json()["receiver"]["alert"] == true
        })
        .await;
        policies_until(&server, |policies| policies["receiver"]["alert"] == false).await;
        server.signal("TERM");
        let (status, logs, _) = server.stopped();
        assert!(status.success());
        let lines =
            |part: &str| -> Vec<&str> { logs.lines().filter(|it| it.contains(part)).collect() };
        let (begun, over) = (lines("alert: a level refuses too much"), lines("the alert is over"));
        assert_eq!((begun.len(), over.len()), (1, 1), "{logs}");
        assert!(begun[0].contains("WARN") && begun[0].contains("receiver"), "{logs}");
        assert!(begun[0].contains("above=20%") && begun[0].contains("window=2s"), "{logs}");
        for key in ["4917", "bank", "otp"] {
            assert!(!logs.contains(key), "{key} is nothing for logs at info: {logs}");
        }
    }
}
