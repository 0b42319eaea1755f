//! The whole gateway without a Redis, under a clock that the tests advance.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use clap::Parser;
use serde_json::{Value, json};
use test_support::requests::{HttpResponse, send};
use tokio::time::{advance, sleep, timeout};

use crate::args::Args;
use crate::policies::LOOK_EVERY;

const SECOND: Duration = Duration::from_secs(1);
const ALICE: &str = "+491701234567";
/// Flags that leave only the receiver's level to refuse anything.
const ROOMY: [&str; 6] =
    ["--global", "9999/1s", "--institution-limit", "999/1s", "--channel-limit", "999/1s"];

#[derive(Clone)]
struct App(Router);

impl App {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&["sms-gateway", "--downstream-latency", "0ms"], flags].concat();
        let args = Args::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
        Self(crate::app(args).await.unwrap_or_else(|error| panic!("{error}")))
    }

    async fn ask_from(&self, peer: &str, method: &str, path: &str, body: &str) -> HttpResponse {
        let request = Request::builder().method(method).uri(path);
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        let peer: SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        send(&self.0, request).await
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        self.ask_from("127.0.0.1:9", method, path, body).await
    }

    async fn sms(&self, institution: &str, to: &str) -> HttpResponse {
        let message =
            json!({ "institution": institution, "channel": "otp", "to": to, "text": "Hi" });
        self.ask("POST", "/sms", &message.to_string()).await
    }

    async fn is_sent(&self, institution: &str, to: &str) {
        let answer = self.sms(institution, to).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }

    /// Sends a message that is refused, and checks which levels refuse it.
    async fn refused_by(&self, institution: &str, to: &str, levels: &[&str]) -> HttpResponse {
        let answer = self.sms(institution, to).await;
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(answer.problem()["violated-policies"], json!(levels));
        answer
    }

    async fn policies(&self) -> Value {
        serde_json::from_str(&self.ask("GET", "/policies", "").await.body).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_waits_is_admitted() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "2/10s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    advance(3 * SECOND).await;
    app.is_sent("bank", ALICE).await;
    let denied = app.refused_by("shop", ALICE, &["receiver"]).await;
    assert_eq!(denied.retry_after(), Some(7));
    advance(7 * SECOND - Duration::from_micros(1)).await;
    app.refused_by("bank", ALICE, &["receiver"]).await;
    advance(Duration::from_micros(1)).await;
    app.is_sent("bank", ALICE).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_counts_nowhere() {
    let flags = ["--institution", "bank=3/1h", "--channel-limit", "4/1h"];
    let app = App::start(&[&flags[..], &["--receiver-limit", "1/1h"]].concat()).await;
    app.is_sent("bank", "+4917010000001").await;
    for _ in 0..5 {
        app.refused_by("bank", "+4917010000001", &["receiver"]).await;
    }
    app.is_sent("bank", "+4917010000002").await;
    app.is_sent("bank", "+4917010000003").await;
    for _ in 0..5 {
        app.refused_by("bank", "+4917010000004", &["institution"]).await;
    }
    app.ask("PUT", "/policies/institution/bank", "9/1h").await;
    app.is_sent("bank", "+4917010000004").await;
    app.refused_by("bank", "+4917010000001", &["channel", "receiver"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_is_a_503_with_a_true_wait() {
    let flags = ["--global", "2/10s", "--institution", "bank=7/1h", "--receiver-limit", "9/1s"];
    let app = App::start(&flags).await;
    app.is_sent("bank", ALICE).await;
    app.is_sent("bank", ALICE).await;
    // The places that it took are free again: five are left when the bucket has refused five.
    for _ in 0..5 {
        let refused = app.sms("bank", ALICE).await;
        assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(5)));
    }
    advance(5 * SECOND - Duration::from_nanos(1)).await;
    assert_eq!(app.sms("bank", ALICE).await.status, 503);
    advance(Duration::from_millis(1)).await;
    for _ in 0..4 {
        app.is_sent("bank", ALICE).await;
        advance(5 * SECOND).await;
    }
    app.is_sent("bank", ALICE).await;
    app.refused_by("bank", ALICE, &["institution"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_admitted_takes_no_token() {
    let flags = ["--institution", "bank=1/10s", "--institution", "shop=1/10s", "--global", "2/10s"];
    let app = App::start(&flags).await;
    app.is_sent("bank", ALICE).await;
    for _ in 0..5 {
        app.refused_by("bank", "+4917010000002", &["institution"]).await;
        assert_eq!(app.ask("POST", "/sms", "{}").await.status, 422);
        assert_eq!(app.sms("stranger", ALICE).await.status, 403);
    }
    app.is_sent("shop", ALICE).await;
    // What the bucket alone decides on are the two messages that the levels admitted.
    app.refused_by("shop", "+4917010000002", &["institution"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_downstream_gives_places_back() {
    let flags = ["--institution", "bank=1/1h", "--channel-limit", "1/1h"];
    let app = App::start(&[&flags[..], &["--receiver-limit", "1/1h"]].concat()).await;
    app.ask("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    for _ in 0..3 {
        let failed = app.sms("bank", ALICE).await;
        assert_eq!((failed.status.as_u16(), failed.retry_after()), (503, Some(1)));
    }
    // Also when the client no longer waits.
    app.ask("PUT", "/downstream", r#"{"latency":"5s"}"#).await;
    assert!(timeout(SECOND, app.sms("bank", ALICE)).await.is_err(), "it takes five seconds");
    app.refused_by("bank", ALICE, &["institution", "channel", "receiver"]).await;
    sleep(5 * SECOND).await;
    app.ask("PUT", "/downstream", r#"{"latency":"0ms","errors":"0%"}"#).await;
    app.is_sent("bank", ALICE).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_policy_applies_at_once() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "9/60s"]].concat()).await;
    for _ in 0..3 {
        app.is_sent("bank", ALICE).await;
        advance(SECOND).await;
    }
    let changed = app.ask("PUT", "/policies/receiver", r#""2/60s""#).await;
    assert_eq!(changed.body, r#"{"configured":"2/60s","effective":"2/60s"}"#);
    // Earlier messages count: the second newest has to leave.
    let denied = app.refused_by("bank", ALICE, &["receiver"]).await;
    assert_eq!(denied.retry_after(), Some(58));
    app.ask("PUT", "/policies/receiver", " 4/60s\n").await;
    app.is_sent("bank", ALICE).await;
    app.refused_by("bank", ALICE, &["receiver"]).await;
    assert_eq!(app.policies().await["version"], 2);
    assert!(2 * LOOK_EVERY <= SECOND, "other servers follow within a second");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_change_changes_nothing() {
    let app = App::start(&["--global", "500/1s"]).await;
    let before = app.policies().await;
    for (target, policy, sum) in [
        ("institution", "251/1s", 502.0),
        ("institution/bank", "24001/60s", 100.0 + 24001.0 / 60.0),
    ] {
        let refused = app.ask("PUT", &format!("/policies/{target}"), policy).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        let problem = refused.problem();
        assert!((problem["sum"].as_f64().unwrap() - sum).abs() < 1e-9, "{problem}");
        assert_eq!(problem["global"], json!({ "policy": "500/1s", "rate": 500.0 }));
        assert_eq!(app.policies().await, before);
    }
    for (target, policy, status) in [
        ("receiver", "0/1s", 422),
        ("receiver", "\"5/60s", 400),
        ("sender", "5/60s", 404),
        ("institution/stranger", "5/60s", 404),
    ] {
        let refused = app.ask("PUT", &format!("/policies/{target}"), policy).await;
        assert_eq!(refused.status, status, "{target} {policy}");
        assert_eq!(app.policies().await, before);
    }
    assert_eq!(app.ask("PUT", "/policies/institution", "250/1s").await.status, 200);
    assert_eq!(app.ask("PUT", "/policies/channel", "99999/1s").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn only_this_machine_may_change_policies() {
    let app = App::start(&[]).await;
    for (method, path) in
        [("GET", "/policies"), ("PUT", "/policies/channel"), ("GET", "/downstream")]
    {
        for (peer, is_local) in [
            ("192.0.2.7:9", false),
            ("[2001:db8::1]:9", false),
            ("[::ffff:192.0.2.7]:9", false),
            ("127.8.8.8:9", true),
            ("[::1]:9", true),
            ("[::ffff:127.0.0.1]:9", true),
        ] {
            let answer = app.ask_from(peer, method, path, "1/1s").await;
            assert_eq!(answer.status != 403, is_local, "{method} {path} {peer}: {answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn thresholds_follow_the_downstream() {
    let flags =
        ["--institution-limit", "100/1s", "--adapt-floor", "20%", "--receiver-limit", "9999/1s"];
    let app = App::start(&flags).await;
    let run = async |seconds: u32| {
        for _ in 0..seconds {
            for _ in 0..10 {
                let app = app.clone();
                tokio::spawn(async move { app.sms("bank", ALICE).await });
            }
            sleep(SECOND).await;
        }
        let shown = app.policies().await;
        assert_eq!(shown["institution"]["configured"], "100/1s");
        assert_eq!(shown["channel"]["effective"], "150/1s", "it is not adapted");
        let text = shown["institution"]["effective"].as_str().unwrap().to_owned();
        text.strip_suffix("/1s").unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(run(30).await, 100);
    for knob in [r#"{"errors":"50%"}"#, r#"{"errors":"0%","latency":"501ms"}"#] {
        app.ask("PUT", "/downstream", knob).await;
        assert_eq!(run(9).await, 70, "{knob}");
        assert_eq!(run(100).await, 20, "{knob}");
        app.ask("PUT", "/downstream", r#"{"errors":"0%","latency":"499ms"}"#).await;
        assert_eq!(run(60).await, 100, "{knob}");
    }
    // A change while thresholds are lowered is one of the configured threshold.
    app.ask("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    run(9).await;
    let changed = app.ask("PUT", "/policies/institution", "200/1s").await;
    assert_eq!(changed.body, r#"{"configured":"200/1s","effective":"140/1s"}"#);
}
