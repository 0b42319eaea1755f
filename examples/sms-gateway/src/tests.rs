//! The whole gateway without a Redis, under a clock that the tests advance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use clap::Parser;
use example_support::webhook::Webhook;
use serde_json::{Value, json};
use test_support::requests::{HttpResponse, send};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::args::Args;
use crate::levels::{Document, Levels, Limit};
use crate::message::Message;

const SECOND: Duration = Duration::from_secs(1);
const ALICE: &str = "+491701234567";
const HOLD: [&str; 2] = ["--hold", "5s"];

/// Returns limits that refuse nothing, but for the parts that are given.
fn document(parts: Value) -> Document {
    let mut document = json!({
        "institution_share": 100,
        "institutions": { "bank": "999/1s", "shop": "999/1s" },
        "channels": { "otp": "999/1s" },
        "destinations": { "+1": "999/1s", "+49": "999/1s" },
        "receiver": "999/1s",
    });
    document.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    serde_json::from_value(document).unwrap()
}

/// On a Cluster logs are asked in the order of their keys. An institution that is above a limit of its own must take no
/// place for a moment in what all share.
#[test]
fn what_an_institution_has_alone_is_asked_first() {
    let limits = json!({ "zzz": "99/1s" });
    let parts = json!({ "institution_share": 1, "institutions": limits, "channels": limits });
    let levels = Levels::new(&document(parts)).unwrap();
    let [institution, channel, to, text] = ["zzz", "zzz", ALICE, ""].map(str::to_owned);
    let mut logs = levels.logs(&Message { institution, channel, to, text, parts: 1 }).unwrap();
    logs.sort_by(|(_, key), (_, other)| key.cmp(other));
    let shown = |(limit, _): &(Limit, _)| format!("{} {}", limit.policy.get().name(), limit.most);
    // One percent of 99 is less than one.
    let own = "destination-share 9, receiver-share 9, institution 99, channel-share 1";
    let shared = "destination 999, receiver 999, channel 99";
    let logs: Vec<_> = logs.iter().map(shown).collect();
    assert_eq!(logs.join(", "), format!("{own}, {shared}"));
}

#[derive(Clone)]
struct App {
    clients: Router,
    operator: Router,
    /// Asks the server to stop.
    stop: Arc<watch::Sender<bool>>,
}

impl App {
    /// Starts a gateway whose limits refuse nothing, but for the parts of the document that are given.
    async fn start(flags: &[&str], policies: Value) -> Self {
        let global = if flags.contains(&"--global") { &[][..] } else { &["--global", "9999/1s"] };
        let args = Args::try_parse_from([&["sms-gateway"], global, flags].concat()).unwrap();
        let webhook = Webhook::new(&args.webhook).unwrap();
        let (stop, stopping) = watch::channel(false);
        let apps = crate::apps(args, document(policies), 8192, stopping, &webhook).await;
        let (clients, operator, _) = apps.unwrap();
        let app = Self { clients, operator, stop: Arc::new(stop) };
        app.downstream(json!({ "latency_ms": 0 })).await;
        app
    }

    /// Sends a request to the admin listener.
    async fn operator(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let request = Request::builder().method(method).uri(path);
        send(&self.operator, request.body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn set(&self, target: &str, limit: &str) {
        let answer = self.operator("PUT", &format!("/policies/{target}"), limit).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    async fn downstream(&self, knobs: Value) {
        let answer = self.operator("PUT", "/downstream", &knobs.to_string()).await;
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    async fn shown(&self, path: &str) -> Value {
        serde_json::from_str(&self.operator("GET", path, "").await.body).unwrap()
    }

    async fn message(&self, institution: &str, to: &str, text: &str) -> HttpResponse {
        let body = json!({ "institution": institution, "channel": "otp", "to": to, "text": text });
        let request = Request::builder().method("POST").uri("/sms");
        send(&self.clients, request.body(Body::from(body.to_string())).unwrap()).await
    }

    async fn sms(&self, institution: &str, to: &str) -> HttpResponse {
        self.message(institution, to, "Hi").await
    }

    async fn status(&self, institution: &str, to: &str) -> u16 {
        self.sms(institution, to).await.status.as_u16()
    }

    /// Sends a message from a task of its own, and lets it begin.
    async fn spawn(&self, institution: &str, to: &str) -> JoinHandle<u16> {
        let (app, institution, to) = (self.clone(), institution.to_owned(), to.to_owned());
        let sent = tokio::spawn(async move { app.status(&institution, &to).await });
        sleep(Duration::from_millis(1)).await;
        sent
    }

    async fn is_sent(&self, institution: &str, to: &str) {
        let answer = self.sms(institution, to).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }

    /// Sends a message that is refused, and checks which policies refuse it.
    async fn refused_by(&self, institution: &str, to: &str, names: &[&str]) -> HttpResponse {
        let answer = self.sms(institution, to).await;
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(answer.document()["violated-policies"], json!(names));
        answer
    }
}

/// A receiver of its own for each number.
fn to(number: usize) -> String {
    format!("+1555{number:07}")
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_level_and_an_honest_wait() {
    let app = App::start(&[], json!({ "receiver": "2/10s" })).await;
    app.is_sent("bank", ALICE).await;
    advance(3 * SECOND).await;
    app.is_sent("bank", ALICE).await;
    let denied = app.refused_by("shop", "0049 (0)170 123 45 67", &["receiver"]).await;
    assert_eq!(denied.retry_after(), Some(7));
    advance(7 * SECOND - Duration::from_micros(1)).await;
    app.refused_by("bank", ALICE, &["receiver"]).await;
    advance(Duration::from_micros(1)).await;
    app.is_sent("bank", ALICE).await;
    // A changed limit applies at once, and earlier messages count, also in a shorter window.
    app.set("receiver", " 3/8s\n").await;
    app.is_sent("bank", ALICE).await;
    app.set("receiver", "1/10s").await;
    assert_eq!(app.refused_by("bank", ALICE, &["receiver"]).await.retry_after(), Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_counts_nowhere() {
    let policies = json!({
        "institutions": { "bank": "3/1h", "shop": "1/1h" },
        "channels": { "otp": "4/1h" },
        "destinations": { "+1": "3/1h" },
        "receiver": "1/1h",
    });
    let app = App::start(&[], policies).await;
    app.is_sent("bank", &to(0)).await;
    for _ in 0..5 {
        app.refused_by("bank", &to(0), &["receiver"]).await;
    }
    app.is_sent("bank", &to(1)).await;
    app.is_sent("bank", &to(2)).await;
    for _ in 0..5 {
        app.refused_by("bank", &to(3), &["institution", "destination"]).await;
    }
    app.set("institutions/bank", "9/1h").await;
    app.set("destinations/+1", "9/1h").await;
    app.is_sent("bank", &to(3)).await;
    app.refused_by("shop", &to(0), &["channel", "receiver"]).await;
    let refused = json!({
        "bank": { "institution": 5, "destination": 5, "receiver": 5 },
        "shop": { "channel": 1, "receiver": 1 },
    });
    assert_eq!(app.shown("/state").await["refused"], refused);
}

/// Of each limit that institutions share, one leaves the rest to the others.
#[tokio::test(start_paused = true)]
async fn one_institution_takes_no_more_than_its_share() {
    for (all, list, limit) in [
        ("channel", "channels", json!({ "otp": "4/1h" })),
        ("destination", "destinations", json!({ "+1": "4/1h" })),
        ("receiver", "receiver", json!("4/1h")),
    ] {
        let own = &*format!("{all}-share");
        let app = App::start(&[], json!({ "institution_share": 50, list: limit })).await;
        app.is_sent("shop", &to(0)).await;
        app.is_sent("shop", &to(0)).await;
        app.refused_by("shop", &to(0), &[own]).await;
        app.is_sent("bank", &to(0)).await;
        app.is_sent("bank", &to(0)).await;
        app.refused_by("bank", &to(0), &[own, all]).await;
        // A text that no wait makes fit in the share.
        let long = app.message("bank", &to(1), &"a".repeat(400)).await;
        assert_eq!((long.status.as_u16(), &long.document()["level"]), (422, &own.into()));
        let refused = json!({ "bank": { all: 1 }, "shop": { all: 1 } });
        assert_eq!(app.shown("/state").await["refused"], refused, "a share is of its level");
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_prefix_decides_and_others_are_refused() {
    let app = App::start(&[], json!({ "destinations": { "+49": "9/1h", "+4915": "1/1h" } })).await;
    app.is_sent("shop", "+4915110000001").await;
    app.refused_by("shop", "+4915110000002", &["destination"]).await;
    app.is_sent("shop", ALICE).await;
    let refused = app.sms("shop", &to(0)).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(refused.document()["type"], "/problems/unknown-destination");
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_is_a_503_with_a_true_wait_and_counts_nowhere() {
    let flags = ["--global", "4/4s", "--alert-least", "4"];
    let app = App::start(&flags, json!({ "receiver": "8/1h" })).await;
    let three_parts = "a".repeat(400);
    let sent = app.message("bank", ALICE, &three_parts).await;
    assert_eq!((sent.status.as_u16(), sent.body.contains(r#""parts":3"#)), (202, true), "{sent:?}");
    let refused = app.message("bank", ALICE, &three_parts).await;
    assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(3)));
    advance(3 * SECOND - Duration::from_micros(1)).await;
    assert_eq!(app.message("bank", ALICE, &three_parts).await.status, 503);
    advance(Duration::from_micros(1)).await;
    assert_eq!(app.message("bank", ALICE, &three_parts).await.status, 202);
    advance(4 * SECOND).await;
    // What the levels refuse takes no token.
    for _ in 0..5 {
        let refused = app.message("bank", ALICE, &three_parts).await;
        assert_eq!(refused.document()["violated-policies"], json!(["receiver"]));
    }
    assert_eq!(app.message("bank", ALICE, "你你").await.status, 202, "two of eight are left");
    let refused = json!({ "bank": { "global": 2, "receiver": 5 } });
    assert_eq!(app.shown("/state").await["refused"], refused);
    // Two of the five that came to the bucket, and not of all ten, are more than a fifth.
    sleep(4 * SECOND).await;
    assert_eq!(app.shown("/state").await["alerts"], json!(["global", "receiver"]));
}

#[tokio::test(start_paused = true)]
async fn a_text_that_never_fits_is_refused_for_good() {
    let app =
        App::start(&["--global", "9/1s", "--hold", "5s"], json!({ "receiver": "4/1s" })).await;
    for (limit, parts, level, most) in [("4/1s", 5, "receiver", 4), ("99/1s", 10, "global", 9)] {
        app.set("receiver", limit).await;
        let refused = app.message("bank", ALICE, &"a".repeat(153 * parts)).await;
        assert_eq!((refused.status.as_u16(), refused.retry_after()), (422, None), "{refused:?}");
        let members = ["level", "parts", "most"].map(|it| refused.document()[it].clone());
        assert_eq!(members, [json!(level), json!(parts), json!(most)]);
    }
    // So is one that waits for a limit that becomes too low for it.
    app.set("receiver", "2/4s").await;
    let two_parts = "a".repeat(161);
    assert_eq!(app.message("bank", ALICE, &two_parts).await.status, 202);
    let waiting = app.clone();
    let waiting = tokio::spawn(async move { waiting.message("bank", ALICE, &two_parts).await });
    sleep(SECOND).await;
    app.set("receiver", "1/4s").await;
    assert_eq!(waiting.await.unwrap().status, 422);
    assert_eq!(app.shown("/state").await["refused"], json!({}), "a wait is no refusal");
}

/// The limits admit a minute's messages at once, which the bucket does not hold.
#[tokio::test(start_paused = true)]
async fn a_flood_leaves_the_others_their_portion_of_the_bucket() {
    let policies = json!({ "institutions": { "shop": "2400/60s", "bank": "2400/60s" } });
    let app = App::start(&["--global", "80/1s"], policies).await;
    let mut shop = 0;
    for number in 0..60 {
        for message in 0..100 {
            shop += u32::from(app.status("shop", &to(1000 + number * 100 + message)).await == 202);
        }
        app.is_sent("bank", &to(number)).await;
        sleep(SECOND / 20).await;
    }
    // Its half of the bucket and of the rate, and what the other leaves of its half, in three seconds.
    assert!((200..=240).contains(&shop), "{shop}");
}

/// It takes the tokens of the others for a text that no longer fits its own portion, which it then uses for short ones.
#[tokio::test(start_paused = true)]
async fn a_long_text_leaves_the_others_their_portion_of_the_bucket() {
    let app = App::start(&["--global", "20/20s"], json!({})).await;
    app.is_sent("shop", ALICE).await;
    advance(SECOND).await;
    // The bucket is full again, and half a token of the ten of shop is missing.
    assert_eq!(app.message("shop", ALICE, &"a".repeat(10 * 153)).await.status, 202);
    for number in 0..10 {
        app.status("shop", &to(number)).await;
    }
    for number in 0..10 {
        app.is_sent("bank", &to(number)).await;
    }
}

/// A message that the downstream failed to take may have reached the receiver.
#[tokio::test(start_paused = true)]
async fn an_attempt_counts_even_if_it_fails() {
    let app = App::start(&[], json!({ "receiver": "2/1h" })).await;
    app.downstream(json!({ "errors": 100 })).await;
    for _ in 0..2 {
        let failed = app.sms("bank", ALICE).await;
        assert_eq!((failed.status.as_u16(), failed.retry_after()), (503, Some(1)));
    }
    app.refused_by("bank", ALICE, &["receiver"]).await;
    // Also when the client no longer waits.
    app.downstream(json!({ "latency_ms": 5000 })).await;
    for _ in 0..2 {
        assert!(timeout(SECOND, app.sms("bank", &to(0))).await.is_err());
    }
    sleep(5 * SECOND).await;
    app.refused_by("bank", &to(0), &["receiver"]).await;
}

/// The controller lowers the limits of the institutions while the downstream fails or is slow, and raises them
/// again.
#[tokio::test(start_paused = true)]
async fn limits_follow_the_downstream() {
    let app = App::start(&["--adapt-floor", "20"], json!({})).await;
    let left = async || app.shown("/state").await["institution_limits_left"].as_u64().unwrap();
    let run = async |seconds: u32| {
        for _ in 0..seconds {
            for _ in 0..10 {
                app.spawn("bank", ALICE).await;
            }
            sleep(SECOND).await;
        }
        left().await
    };
    app.downstream(json!({ "errors": 100 })).await;
    for _ in 0..4 {
        app.status("bank", ALICE).await;
    }
    sleep(70 * SECOND).await;
    assert_eq!(left().await, 100, "four results are too few to lower anything");
    for knobs in [json!({ "errors": 50 }), json!({ "errors": 0, "latency_ms": 501 })] {
        app.downstream(knobs.clone()).await;
        assert_eq!(run(7).await, 49, "by every other look: {knobs}");
        assert_eq!(run(30).await, 20, "{knobs}");
        app.downstream(json!({ "errors": 5, "latency_ms": 499 })).await;
        assert_eq!(run(6).await, 30, "slowly: {knobs}");
        assert_eq!(run(50).await, 100, "{knobs}");
    }
}

/// What hangs is seen while it hangs, and no call is waited for without end.
#[tokio::test(start_paused = true)]
async fn a_downstream_that_hangs_lowers_the_limits_and_each_caller_is_answered() {
    let app = App::start(&[], json!({})).await;
    app.downstream(json!({ "latency_ms": 3_600_000 })).await;
    let mut sent = Vec::new();
    for number in 0..45 {
        sent.push(app.spawn("bank", &to(number)).await);
        sleep(SECOND / 10).await;
    }
    let state = app.shown("/state").await;
    assert_ne!(state["institution_limits_left"], 100, "before any has ended");
    assert_eq!(state["at_downstream"], 45);
    for message in sent {
        let status = timeout(10 * SECOND, message).await.expect("an answer").unwrap();
        assert_eq!(status, 503);
    }
    assert_eq!(app.shown("/state").await["at_downstream"], 0);
}

/// However much of it fails. What does not fit any more is told to wait.
#[tokio::test(start_paused = true)]
async fn a_failing_downstream_gets_no_more_than_the_lowered_limit() {
    let app = App::start(&[], json!({ "institutions": { "bank": "20/1s" } })).await;
    app.downstream(json!({ "errors": 100 })).await;
    let handed_over = async || {
        let mut count = 0;
        for _ in 0..50 {
            count += usize::from(app.status("bank", ALICE).await == 503);
        }
        sleep(SECOND).await;
        count
    };
    assert_eq!(handed_over().await, 20, "before it is lowered");
    for _ in 0..50 {
        handed_over().await;
    }
    assert_eq!(handed_over().await, 2);
    let refused = app.message("bank", ALICE, &"a".repeat(400)).await;
    assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(10)));
    // A change meanwhile is one of the configured limit.
    app.set("institutions/bank", "30/1s").await;
    assert_eq!(handed_over().await, 3);
    // Also if there is a message in ten seconds only.
    for _ in 0..60 {
        app.status("bank", ALICE).await;
        sleep(10 * SECOND).await;
    }
    assert_eq!(app.shown("/state").await["institution_limits_left"], 10);
    // Nothing that is sent fits, and so nothing says that the downstream is well again.
    app.set("institutions/bank", "20/1s").await;
    app.downstream(json!({ "errors": 0 })).await;
    let (mut tries, refused) = (0, app.shown("/state").await["refused"].clone());
    while app.message("bank", ALICE, &"a".repeat(400)).await.status != 202 {
        tries += 1;
        assert!(tries < 20, "the limits stay low");
        sleep(10 * SECOND).await;
    }
    assert_ne!(app.shown("/state").await["refused"], refused, "refusals are counted");
}

#[tokio::test(start_paused = true)]
async fn an_alert_begins_above_its_bound_and_is_over_at_half() {
    let app = App::start(&["--alert-least", "10"], json!({ "receiver": "6/10s" })).await;
    sleep(SECOND).await;
    // In each window: messages to a receiver who gets six of them, and to others.
    for (to_alice, others, is_on) in
        [(9, 0, false), (8, 2, false), (9, 1, true), (7, 2, true), (7, 3, false)]
    {
        for number in 0..to_alice + others {
            app.status("bank", &if number < to_alice { ALICE.into() } else { to(number) }).await;
        }
        sleep(10 * SECOND).await;
        let expected = if is_on { json!(["receiver"]) } else { json!([]) };
        assert_eq!(app.shown("/state").await["alerts"], expected, "{to_alice} {others}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_wait_in_order_and_within_the_bound() {
    let app = App::start(&HOLD, json!({ "receiver": "1/2s" })).await;
    let begun = Instant::now();
    let mut sent = Vec::new();
    for number in 0..5 {
        let app = app.clone();
        // The institutions differ, and both have room all the time.
        let institution = if number % 2 == 0 { "bank" } else { "shop" };
        sent.push(tokio::spawn(async move {
            let answer = app.sms(institution, ALICE).await;
            (answer.status.as_u16(), begun.elapsed().as_secs(), answer.retry_after())
        }));
        sleep(Duration::from_millis(1)).await;
    }
    // One whose caller leaves is sent in turn.
    sent.remove(1).abort();
    let mut seen = Vec::new();
    for message in sent {
        seen.push(message.await.unwrap());
    }
    // No more than three can be admitted within five seconds, so the others need not wait for that.
    assert_eq!(seen[..2], [(202, 0, None), (202, 4, None)]);
    assert_eq!(seen[2..], [(429, 0, Some(6)), (429, 0, Some(6))]);
    assert_eq!(app.shown("/state").await["waiting"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn one_institution_leaves_places_to_wait() {
    let flags = ["--hold", "5s", "--hold-messages", "6"];
    let app = App::start(&flags, json!({ "receiver": "4/4s" })).await;
    for _ in 0..4 {
        app.is_sent("bank", ALICE).await;
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(app.spawn("shop", ALICE).await);
    }
    let begun = Instant::now();
    // Its half of the places is taken.
    assert_eq!((app.status("shop", ALICE).await, begun.elapsed()), (429, Duration::ZERO));
    assert_eq!(app.shown("/state").await["waiting"], json!({ "shop": 3 }));
    app.is_sent("bank", ALICE).await;
    assert_eq!(begun.elapsed().as_secs(), 3, "it has waited");
    for message in waiting {
        assert_eq!(message.await.unwrap(), 202);
    }
}

#[tokio::test(start_paused = true)]
async fn a_higher_limit_or_the_end_of_the_server_ends_the_wait() {
    let app = App::start(&["--hold", "300s"], json!({ "receiver": "1/50s" })).await;
    app.is_sent("bank", ALICE).await;
    let waiting = app.spawn("bank", ALICE).await;
    let begun = Instant::now();
    // A longer window begins with an empty log.
    app.set("receiver", "1/100s").await;
    assert_eq!(waiting.await.unwrap(), 202);
    assert!(begun.elapsed() <= SECOND);
    let waiting = [app.spawn("bank", ALICE).await, app.spawn("shop", ALICE).await];
    let begun = Instant::now();
    app.stop.send_replace(true);
    for message in waiting {
        assert_eq!(message.await.unwrap(), 503);
    }
    assert!(begun.elapsed() <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_while_it_runs() {
    let app = App::start(&HOLD, json!({ "channels": { "otp": "9/1s", "news": "9/1s" } })).await;
    assert_eq!(app.status("post", ALICE).await, 403);
    app.set("institutions/post", "1/60s").await;
    app.is_sent("post", ALICE).await;
    app.refused_by("post", ALICE, &["institution"]).await;
    app.set("institutions/post", "1/4s").await;
    let waiting = app.spawn("post", ALICE).await;
    assert_eq!(app.shown("/state").await["waiting"], json!({ "post": 1 }));
    assert_eq!(app.operator("DELETE", "/policies/institutions/post", "").await.status, 200);
    assert_eq!(app.status("post", ALICE).await, 403);
    assert_eq!(waiting.await.unwrap(), 403, "it is gone when its turn comes");
    // Its messages still count when it comes back.
    app.set("institutions/post", "2/60s").await;
    app.is_sent("post", ALICE).await;
    app.refused_by("post", ALICE, &["institution"]).await;
    assert_eq!(app.operator("DELETE", "/policies/channels/otp", "").await.status, 200);
    let refused = app.sms("bank", ALICE).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.document()["type"], "/problems/unknown-channel");
}

/// And not to what they were when it came.
#[tokio::test(start_paused = true)]
async fn a_message_that_waits_is_held_to_the_present_lists() {
    let policies = json!({ "institution_share": 50, "receiver": "2/50s" });
    let app = App::start(&["--hold", "60s"], policies).await;
    app.set("institutions/post", "1/10s").await;
    app.is_sent("post", &to(1)).await;
    app.is_sent("bank", &to(2)).await;
    let waiting = [app.spawn("post", &to(3)).await, app.spawn("bank", &to(2)).await];
    assert_eq!(app.operator("DELETE", "/policies/institutions/post", "").await.status, 200);
    app.set("institutions/post", "1/30s").await;
    app.set("destinations/+15550000003", "1/60s").await;
    let mut all = app.shown("/policies").await;
    all["policies"]["institution_share"] = json!(100);
    assert_eq!(app.operator("PUT", "/policies", &all.to_string()).await.status, 200);
    let begun = Instant::now();
    let [of_post, of_bank] = waiting;
    assert_eq!(of_bank.await.unwrap(), 202);
    assert!(begun.elapsed() <= SECOND, "there is no share that it waits for");
    assert_eq!(of_post.await.unwrap(), 202);
    assert_eq!(begun.elapsed().as_secs(), 29, "the limit of the institution that is there now");
    app.is_sent("bank", &to(3)).await;
    assert_eq!(begun.elapsed().as_secs(), 89, "the longer prefix counts it");
}

#[tokio::test(start_paused = true)]
async fn wrong_policies_change_nothing_and_say_why() {
    let app = App::start(&[], json!({})).await;
    let before = app.shown("/policies").await;
    let many: BTreeMap<String, &str> = (0..1001).map(|it| (format!("c{it}"), "1/1s")).collect();
    for (part, value, status, says) in [
        ("receiver", json!("0/1s"), 422, "receiver: "),
        ("receiver", json!("5/minute"), 422, "receiver: "),
        ("receiver", json!(5), 400, "line 1"),
        ("institution_share", json!(0), 422, "1 to 100"),
        ("institutions", json!({}), 422, "institutions: there must be 1"),
        ("institutions", json!({ "Bank": "1/1s" }), 422, "institutions.Bank: a name"),
        ("institutions", json!({ "..": "1/1s" }), 422, "institutions...: a name"),
        ("institutions", json!({ "bank": "1" }), 422, "institutions.bank: "),
        ("channels", json!(many), 422, "channels: there must be 1 to 1000"),
        ("destinations", json!({ "49": "1/1s" }), 422, "such as +49"),
        ("destinations", json!({ "+049": "1/1s" }), 422, "such as +49"),
        ("destination", json!({}), 400, "unknown field `destination`"),
    ] {
        let mut next = before.clone();
        next["policies"][part] = value.clone();
        let refused = app.operator("PUT", "/policies", &next.to_string()).await;
        assert_eq!(refused.status, status, "{part} {value}: {refused:?}");
        assert!(refused.body.contains(says), "{says}: {refused:?}");
    }
    let mut another_version = before.clone();
    another_version["version"] = json!(1);
    for (method, path, limit, status) in [
        ("PUT", "/policies", "{}", 400),
        ("PUT", "/policies", &another_version.to_string(), 409),
        ("PUT", "/policies/receiver", "5/", 422),
        ("PUT", "/policies/sender", "5/60s", 404),
        ("PUT", "/policies/channels/a%20b", "5/60s", 422),
        ("PUT", "/policies/channels/%ff", "5/60s", 404),
        ("DELETE", "/policies/receiver", "", 404),
        ("DELETE", "/policies/channels/news", "", 404),
        ("DELETE", "/policies/channels/otp", "", 422),
        ("PUT", "/downstream", r#"{"latency":"fast"}"#, 400),
    ] {
        let refused = app.operator(method, path, limit).await;
        assert_eq!(refused.status, status, "{method} {path}: {refused:?}");
    }
    assert_eq!(app.shown("/policies").await, before);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_message_is_refused() {
    let app = App::start(&[], json!({})).await;
    let good = json!({ "institution": "bank", "channel": "otp", "to": ALICE, "text": "Hi" });
    let with = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body.to_string()
    };
    for (body, status, part) in [
        ("{\n\"to\": +49}".to_owned(), 400, "line 2"),
        ("null".to_owned(), 400, "JSON object"),
        (with("to", Value::Null), 400, "expected a string"),
        (with("to", "+0491701234567".into()), 422, "7 to 15 digits"),
        (with("institution", "stranger".into()), 403, "no such institution"),
        (with("channel", "stranger".into()), 403, "no such channel"),
        (with("text", "ü".repeat(1601).into()), 422, "1 to 1600"),
        (with("text", "x".repeat(30_000).into()), 413, ""),
    ] {
        let request = Request::builder().method("POST").uri("/sms").body(Body::from(body.clone()));
        let answer = send(&app.clients, request.unwrap()).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let said = answer.body;
        assert!(said.contains(part) && !said.contains("stranger"), "{body}: {said}");
    }
}
