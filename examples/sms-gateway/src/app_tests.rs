//! The whole gateway without a Redis, under a clock that the tests advance.

mod fairness;
mod hold;
mod lists;
mod parts;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use clap::Parser;
use example_support::webhook::Webhook;
use serde_json::{Value, json};
use test_support::requests::{HttpResponse, send};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep, timeout};

use crate::Apps;
use crate::args::Args;

const SECOND: Duration = Duration::from_secs(1);
const ALICE: &str = "+491701234567";
/// Flags that leave only the receiver's level to refuse anything.
const ROOMY: [&str; 6] =
    ["--global", "9999/1s", "--institution-limit", "999/1s", "--channel-limit", "999/1s"];
/// One institution may take all, unless a test is about what it leaves to the others.
const WITHOUT_SHARE: [&str; 2] = ["--institution-share", "100%"];
const SHARE: [&str; 2] = ["--institution-share", "50%"];

#[derive(Clone)]
struct App {
    apps: Arc<Apps>,
    /// Asks the server to stop.
    stop: watch::Sender<bool>,
}

impl App {
    async fn start(flags: &[&str]) -> Self {
        let share = if flags.contains(&"--institution-share") { &[][..] } else { &WITHOUT_SHARE };
        let flags = [&["sms-gateway", "--downstream-latency", "0ms"], share, flags].concat();
        let args = Args::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
        let webhook = Webhook::new(&args.webhook).unwrap();
        let (stop, stopping) = watch::channel(false);
        let apps = crate::apps(args, stopping, webhook).await;
        Self { apps: Arc::new(apps.unwrap_or_else(|error| panic!("{error}"))), stop }
    }

    /// Sends a request to the admin listener.
    async fn operator(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let request = Request::builder().method(method).uri(path);
        send(&self.apps.operator, request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// Sends a body to the route of the messages.
    async fn post(&self, body: String) -> HttpResponse {
        let request = Request::builder().method("POST").uri("/sms");
        send(&self.apps.clients, request.body(Body::from(body)).unwrap()).await
    }

    async fn sms(&self, institution: &str, to: &str) -> HttpResponse {
        self.post(message(institution, "otp", to, "Hi")).await
    }

    /// Sends a message from a task of its own, and lets it begin.
    async fn spawn_sms(&self, institution: &str, to: &str) -> JoinHandle<HttpResponse> {
        let (app, institution, to) = (self.clone(), institution.to_owned(), to.to_owned());
        let sent = tokio::spawn(async move { app.sms(&institution, &to).await });
        sleep(Duration::from_millis(1)).await;
        sent
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

    async fn shown(&self, path: &str) -> Value {
        serde_json::from_str(&self.operator("GET", path, "").await.body).unwrap()
    }

    async fn policies(&self) -> Value {
        self.shown("/policies").await
    }
}

fn message(institution: &str, channel: &str, to: &str, text: &str) -> String {
    json!({ "institution": institution, "channel": channel, "to": to, "text": text }).to_string()
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
    app.operator("PUT", "/policies/institution/bank", "9/1h").await;
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
        assert_eq!(app.post("{}".to_owned()).await.status, 422);
        assert_eq!(app.sms("stranger", ALICE).await.status, 403);
    }
    app.is_sent("shop", ALICE).await;
    // What the bucket alone decides on are the two messages that the levels admitted.
    app.refused_by("shop", "+4917010000002", &["institution"]).await;
}

/// A message that the downstream failed to take may have reached the receiver.
#[tokio::test(start_paused = true)]
async fn an_attempt_counts_even_if_it_fails() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "2/1h"]].concat()).await;
    app.operator("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    for _ in 0..2 {
        let failed = app.sms("bank", ALICE).await;
        assert_eq!((failed.status.as_u16(), failed.retry_after()), (503, Some(1)));
    }
    for _ in 0..50 {
        app.refused_by("bank", ALICE, &["receiver"]).await;
    }
    // Also when the client no longer waits.
    app.operator("PUT", "/downstream", r#"{"latency":"5s"}"#).await;
    for _ in 0..2 {
        assert!(timeout(SECOND, app.sms("bank", "+4917010000001")).await.is_err());
    }
    sleep(5 * SECOND).await;
    app.refused_by("bank", "+4917010000001", &["receiver"]).await;
}

/// What the controller lowers a threshold to is what the downstream gets, however much of it fails.
#[tokio::test(start_paused = true)]
async fn a_failing_downstream_gets_no_more_than_the_lowered_threshold() {
    let app = App::start(&["--institution-limit", "100/1s"]).await;
    app.operator("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    let mut handed_over = Vec::new();
    for second in 0..100 {
        handed_over.push(0);
        for message in 0..150 {
            let answer = app.sms("bank", &format!("+1555{:07}", second * 150 + message)).await;
            handed_over[second] += usize::from(answer.status == 503);
        }
        sleep(SECOND).await;
    }
    assert_eq!(handed_over[0], 100, "before it is lowered: {handed_over:?}");
    assert!(handed_over[90..].iter().all(|count| *count == 10), "{handed_over:?}");
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
        assert_eq!(shown["channel"]["effective"], "200/1s", "it is not adapted");
        let text = shown["institution"]["effective"].as_str().unwrap().to_owned();
        text.strip_suffix("/1s").unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(run(30).await, 100);
    for knob in [r#"{"errors":"50%"}"#, r#"{"errors":"0%","latency":"501ms"}"#] {
        app.operator("PUT", "/downstream", knob).await;
        assert_eq!(run(9).await, 70, "{knob}");
        assert_eq!(run(100).await, 20, "{knob}");
        app.operator("PUT", "/downstream", r#"{"errors":"0%","latency":"499ms"}"#).await;
        assert_eq!(run(60).await, 100, "{knob}");
    }
    // A change while thresholds are lowered is one of the configured threshold.
    app.operator("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    run(9).await;
    let changed = app.operator("PUT", "/policies/institution", "200/1s").await;
    assert_eq!(changed.body, r#"{"configured":"200/1s","effective":"140/1s"}"#);
}
