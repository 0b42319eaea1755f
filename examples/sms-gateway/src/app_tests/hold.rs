//! Messages that wait for room instead of being refused.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, advance, sleep};

use super::{ALICE, App, ROOMY, SECOND, SHARE, message};

const HOLD: [&str; 2] = ["--hold", "5s"];

async fn start(flags: &[&str]) -> App {
    App::start(&[&HOLD[..], flags].concat()).await
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_its_receiver_in_order() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/2s"]].concat()).await;
    let begun = Instant::now();
    let (finished, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..5 {
        let (app, finished) = (app.clone(), finished.clone());
        tokio::spawn(async move {
            // The institutions differ, and another one may have room all the time.
            let institution = if number % 2 == 0 { "bank" } else { "shop" };
            let answer = app.sms(institution, ALICE).await;
            let _ = finished.send((number, answer.status.as_u16(), begun.elapsed().as_secs()));
        });
        sleep(Duration::from_millis(1)).await;
    }
    drop(finished);
    let mut seen = Vec::new();
    while let Some(message) = order.recv().await {
        seen.push(message);
    }
    // No more than three can be admitted within five seconds, so the others need not wait for that.
    assert_eq!(seen[..2], [(0, 202, 0), (4, 503, 0)]);
    assert_eq!(seen[2..4], [(1, 202, 2), (2, 202, 4)]);
    assert_eq!(seen[4].1, 429, "{seen:?}");
    assert!(seen[4].2 <= 5, "{seen:?}");
    assert_eq!(app.shown("/refusals").await["institutions"]["bank"]["waiting"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_bound_is_refused_at_once() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/6s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let begun = Instant::now();
    let refused = app.refused_by("bank", ALICE, &["receiver"]).await;
    assert_eq!((refused.retry_after(), begun.elapsed()), (Some(6), Duration::ZERO));
    advance(SECOND).await;
    app.is_sent("bank", ALICE).await;
    assert_eq!(begun.elapsed(), 6 * SECOND, "five seconds are within the bound");
}

#[tokio::test(start_paused = true)]
async fn one_institution_leaves_places_to_wait() {
    let limits =
        ["--institution-limit", "1/4s", "--receiver-limit", "9/1s", "--hold-messages", "6"];
    let app = start(&limits).await;
    app.is_sent("shop", ALICE).await;
    app.is_sent("bank", ALICE).await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(app.spawn_sms("shop", &format!("+491701000000{number}")).await);
    }
    let counts = app.shown("/refusals").await;
    assert_eq!(counts["institutions"]["shop"]["waiting"], 3, "{counts}");
    app.refused_by("shop", "+4917010000009", &["institution"]).await;
    let begun = Instant::now();
    app.is_sent("bank", ALICE).await;
    assert!(begun.elapsed() > 3 * SECOND, "it has waited");
    let mut statuses = Vec::new();
    for message in waiting {
        statuses.push(message.await.unwrap().status.as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 429, 429], "one place in four seconds");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_sent_in_turn() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/2s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let left = app.spawn_sms("bank", ALICE).await;
    left.abort();
    let begun = Instant::now();
    app.is_sent("bank", ALICE).await;
    assert_eq!(begun.elapsed().as_secs(), 3, "after the one whose caller has left");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_holds_no_message() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/4s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let waiting = [app.spawn_sms("bank", ALICE).await, app.spawn_sms("shop", ALICE).await];
    let begun = Instant::now();
    app.stop.send_replace(true);
    for message in waiting {
        let refused = message.await.unwrap();
        assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(1)));
        assert!(refused.body.contains("Send it again"), "{refused:?}");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_higher_threshold_ends_the_wait() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/5s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let waiting = app.spawn_sms("bank", ALICE).await;
    let begun = Instant::now();
    app.operator("PUT", "/policies/receiver", "2/5s").await;
    assert_eq!(waiting.await.unwrap().status, 202);
    assert!(begun.elapsed() <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_removed_institution_waits_no_longer() {
    let app = start(&[&ROOMY[..], &["--receiver-limit", "1/5s"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let waiting = app.spawn_sms("shop", ALICE).await;
    app.operator("DELETE", "/institutions/shop", "").await;
    assert_eq!(waiting.await.unwrap().status, 403);
}

/// Many messages that wait for one institution ask the store about as often as it has room.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_are_sent_as_room_comes() {
    let limits = ["--institution", "bank=10/1s", "--receiver-limit", "9/1s"];
    let app = start(&limits).await;
    let begun = Instant::now();
    let mut sent = Vec::new();
    for number in 0..60 {
        sent.push(app.spawn_sms("bank", &format!("+49170100000{number:02}")).await);
    }
    for message in sent {
        assert_eq!(message.await.unwrap().status, 202);
    }
    let took = begun.elapsed();
    assert!((5 * SECOND..6 * SECOND).contains(&took), "ten a second, and ten at once: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_by_institution_and_level() {
    let flags =
        ["--institution-limit", "2/1h", "--receiver-limit", "1/1h", "--channel-limit", "3/1h"];
    let app = App::start(&flags).await;
    app.is_sent("bank", ALICE).await;
    app.refused_by("bank", ALICE, &["receiver"]).await;
    app.is_sent("bank", "+4917010000001").await;
    app.refused_by("bank", ALICE, &["institution", "receiver"]).await;
    app.is_sent("shop", "+4917010000002").await;
    app.refused_by("shop", "+4917010000003", &["channel"]).await;
    let counts = app.shown("/refusals").await;
    let expected = |institution, channel, receiver| {
        json!({
            "institution": institution, "channel": channel, "destination": 0,
            "receiver": receiver, "global": 0, "hold": 0,
        })
    };
    assert_eq!(counts["institutions"]["bank"]["total"], expected(1, 0, 2));
    assert_eq!(counts["institutions"]["shop"]["recent"], expected(0, 1, 0));
    advance(63 * SECOND).await;
    let counts = app.shown("/refusals").await;
    assert_eq!(counts["institutions"]["shop"]["recent"], expected(0, 0, 0));
    assert_eq!(counts["institutions"]["shop"]["total"], expected(0, 1, 0));
}

/// What waits for its own institution holds up no message of another one to the same receiver.
#[tokio::test(start_paused = true)]
async fn a_flood_that_waits_delays_no_other() {
    let limits = ["--institution", "shop=1/4s", "--institution", "bank=9/1s"];
    let app = start(&[&limits[..], &["--receiver-limit", "3/60s"]].concat()).await;
    app.is_sent("shop", "+4917010000001").await;
    let waiting = [app.spawn_sms("shop", ALICE).await, app.spawn_sms("shop", ALICE).await];
    let begun = Instant::now();
    app.is_sent("bank", ALICE).await;
    app.is_sent("bank", ALICE).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let [first, second] = waiting.map(|message| async { message.await.unwrap().status });
    assert_eq!(first.await, 202, "the third of the receiver");
    assert_eq!(second.await, 429, "it has waited behind the first");
}

/// What can never be sent is refused at once, and takes no place of a message that waits.
#[tokio::test(start_paused = true)]
async fn a_wrong_message_never_waits() {
    let app =
        start(&[&ROOMY[..], &["--receiver-limit", "1/4s", "--hold-messages", "4"]].concat()).await;
    app.is_sent("bank", ALICE).await;
    let waiting = app.spawn_sms("bank", ALICE).await;
    let begun = Instant::now();
    for (institution, channel, text, status) in [
        ("made-up", "otp", "Hi".to_owned(), 403),
        ("shop", "made-up", "Hi".to_owned(), 422),
        ("shop", "otp", "a".repeat(161), 422),
    ] {
        let refused = app.post(message(institution, channel, ALICE, &text)).await;
        assert_eq!(refused.status, status, "{refused:?}");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{refused:?}");
    }
    assert_eq!(waiting.await.unwrap().status, 202);
}

/// Nor does what waits for the share of its institution, in a channel or at a receiver.
#[tokio::test(start_paused = true)]
async fn a_share_that_is_used_delays_no_other() {
    for limits in [["4/4s", "99/4s"], ["99/4s", "4/4s"]] {
        let [channel, receiver] = limits;
        let flags = ["--channel-limit", channel, "--receiver-limit", receiver];
        let app = start(&[&flags[..], &SHARE].concat()).await;
        app.is_sent("shop", ALICE).await;
        app.is_sent("shop", ALICE).await;
        let waiting = app.spawn_sms("shop", ALICE).await;
        let begun = Instant::now();
        app.is_sent("bank", ALICE).await;
        app.is_sent("bank", ALICE).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "{limits:?}");
        assert_eq!(waiting.await.unwrap().status, 202, "{limits:?}");
    }
}
