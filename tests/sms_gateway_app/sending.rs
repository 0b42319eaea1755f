//! What becomes of a message.

use std::time::Duration;

use serde_json::json;
use tokio::time::{advance, sleep};

use crate::{App, ROOMY, SECOND, violated};

#[tokio::test(start_paused = true)]
async fn who_waits_as_long_as_told_is_admitted() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "2/10s"]].concat()).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    advance(3 * SECOND).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    let denied = app.sms("shop", "ads", "+491701234567").await;
    assert_eq!(violated(&denied), json!(["receiver"]));
    assert_eq!(denied.retry_after(), Some(7));
    advance(7 * SECOND - Duration::from_micros(1)).await;
    violated(&app.sms("bank", "otp", "+491701234567").await);
    advance(Duration::from_micros(1)).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_one_level_refuses_takes_no_place_in_the_others() {
    let flags = ["--institution", "bank=3/1h", "--channel-limit", "4/1h"];
    let app = App::start(&[&flags[..], &["--receiver-limit", "1/1h"]].concat()).await;
    assert_eq!(app.sms("bank", "otp", "+4917010000001").await.status, 202);
    for _ in 0..5 {
        assert_eq!(violated(&app.sms("bank", "otp", "+4917010000001").await), json!(["receiver"]));
    }
    assert_eq!(app.sms("bank", "otp", "+4917010000002").await.status, 202);
    assert_eq!(app.sms("bank", "otp", "+4917010000003").await.status, 202);
    for _ in 0..5 {
        assert_eq!(
            violated(&app.sms("bank", "otp", "+4917010000004").await),
            json!(["institution"])
        );
    }
    app.ask("PUT", "/policies/institution/bank", "9/1h").await;
    assert_eq!(app.sms("bank", "otp", "+4917010000004").await.status, 202, "its window is empty");
    let all = app.sms("bank", "otp", "+4917010000001").await;
    assert_eq!(violated(&all), json!(["channel", "receiver"]));
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_is_a_503_that_says_when_it_has_a_token() {
    let flags = ["--global", "2/10s", "--institution", "bank=1/10s", "--receiver-limit", "9/1s"];
    let app = App::start(&flags).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    violated(&app.sms("bank", "otp", "+491701234567").await);
    // What the levels refuse has taken a token all the same.
    let refused = app.sms("bank", "otp", "+491701234567").await;
    assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(5)));
    assert!(refused.problem()["detail"].as_str().unwrap().contains("2/10s"), "{refused:?}");
    advance(5 * SECOND - Duration::from_nanos(1)).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 503);
    advance(Duration::from_millis(1)).await;
    violated(&app.sms("bank", "otp", "+491701234567").await);
    // Neither what is no message nor who is no institution takes one.
    advance(5 * SECOND).await;
    for _ in 0..5 {
        assert_eq!(app.ask("POST", "/sms", "{}").await.status, 422);
        assert_eq!(app.sms("nobody", "otp", "+491701234567").await.status, 403);
    }
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
}

#[tokio::test(start_paused = true)]
async fn while_all_keep_to_their_rates_the_bucket_refuses_nothing() {
    let flags =
        ["--global", "350/10s", "--institution", "bank=50/2s", "--institution", "shop=100/10s"];
    let app = App::start(&[&flags[..], &["--channel-limit", "9999/1s"]].concat()).await;
    let mut sent = 0;
    for round in 0..30 {
        for (institution, limit, every) in [("bank", 50, 1), ("shop", 100, 5)] {
            for _ in 0..if round % every == 0 { limit } else { 0 } {
                let to = format!("+49{:010}", 1_000_000_000 + sent);
                assert_eq!(app.sms(institution, "otp", &to).await.status, 202, "round {round}");
                sent += 1;
            }
        }
        advance(2 * SECOND).await;
    }
    assert_eq!(sent, 30 * 50 + 6 * 100);
}

#[tokio::test(start_paused = true)]
async fn what_the_downstream_does_not_take_gives_its_places_back() {
    let flags = ["--institution", "bank=1/1h", "--channel-limit", "1/1h"];
    let app = App::start(&[&flags[..], &["--receiver-limit", "1/1h"]].concat()).await;
    app.ask("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    for _ in 0..3 {
        let failed = app.sms("bank", "otp", "+491701234567").await;
        assert_eq!((failed.status.as_u16(), failed.retry_after()), (503, Some(1)));
        assert!(
            failed.problem()["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity")
        );
    }
    // Also if nobody waits for the answer any more.
    app.ask("PUT", "/downstream", r#"{"latency":"5s"}"#).await;
    let asked = app.sms("bank", "otp", "+491701234567");
    assert!(tokio::time::timeout(SECOND, asked).await.is_err(), "it takes five seconds");
    violated(&app.sms("bank", "otp", "+491701234567").await);
    sleep(5 * SECOND).await;
    app.ask("PUT", "/downstream", r#"{"latency":"0ms","errors":"0%"}"#).await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    violated(&app.sms("bank", "otp", "+491701234567").await);
}
