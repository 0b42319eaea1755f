//! A long text takes as many places as it has parts.

use serde_json::json;
use test_support::requests::HttpResponse;
use tokio::time::{advance, sleep};

use super::{ALICE, App, SECOND, message};

async fn text(app: &App, to: &str, text: &str) -> HttpResponse {
    app.post(message("bank", "otp", to, text)).await
}

#[tokio::test(start_paused = true)]
async fn a_long_text_takes_a_place_for_each_part() {
    let flags =
        ["--institution", "bank=9/1h", "--channel-limit", "7/1h", "--receiver-limit", "4/1h"];
    let app = App::start(&flags).await;
    let sent = text(&app, ALICE, &"a".repeat(161)).await;
    assert_eq!(sent.status, 202, "{sent:?}");
    let body: serde_json::Value = serde_json::from_str(&sent.body).unwrap();
    assert_eq!(body["parts"], 2);
    let denied = text(&app, ALICE, &"你".repeat(135)).await;
    assert_eq!(denied.problem()["violated-policies"], json!(["receiver"]), "three parts");
    assert_eq!(text(&app, ALICE, &"€".repeat(81)).await.status, 202, "two parts");
    let denied = text(&app, "+4917010000001", &"a".repeat(459 + 1)).await;
    assert_eq!(denied.problem()["violated-policies"], json!(["channel"]), "four parts");
    assert_eq!(text(&app, "+4917010000001", &"a".repeat(459)).await.status, 202);
    let denied = text(&app, "+4917010000002", "Hi").await;
    assert_eq!(denied.problem()["violated-policies"], json!(["channel"]), "seven are taken");
}

#[tokio::test(start_paused = true)]
async fn parts_take_tokens_and_are_given_back() {
    let flags = ["--global", "4/4s", "--institution", "bank=9/1h", "--receiver-limit", "9/1h"];
    let app = App::start(&flags).await;
    let three_parts = "a".repeat(400);
    assert_eq!(text(&app, ALICE, &three_parts).await.status, 202);
    let refused = text(&app, ALICE, &three_parts).await;
    assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(2)));
    assert_eq!(text(&app, ALICE, "Hi").await.status, 202, "one token is left");
    for _ in 0..2 {
        advance(3 * SECOND).await;
        assert_eq!(text(&app, ALICE, &"a".repeat(306)).await.status, 202);
    }
    // Eight of nine places: those of the message that the bucket refused are free.
    advance(4 * SECOND).await;
    assert_eq!(text(&app, ALICE, "Hi").await.status, 202);
    assert_eq!(text(&app, ALICE, "Hi").await.status, 429);
}

#[tokio::test(start_paused = true)]
async fn a_text_that_never_fits_is_refused_for_good() {
    let flags = ["--receiver-limit", "3/60s,9/1h", "--channel-limit", "4/1s", "--global", "5/1s"];
    let institutions = ["--institution", "bank=5/1s"];
    let app = App::start(&[&flags[..], &institutions].concat()).await;
    for (parts, level, most) in [(4, "receiver", 3), (5, "channel", 4), (6, "institution", 5)] {
        let refused = text(&app, ALICE, &"a".repeat(153 * parts)).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert_eq!(refused.retry_after(), None);
        let problem = refused.problem();
        assert_eq!(problem["type"], "/problems/text-too-long");
        let members = ["level", "parts", "most"].map(|member| problem[member].clone());
        assert_eq!(members, [json!(level), json!(parts), json!(most)]);
    }
    let app =
        App::start(&["--global", "2/1s", "--institution", "bank=9/9s", "--receiver-limit", "9/1h"])
            .await;
    let refused = text(&app, ALICE, &"a".repeat(400)).await;
    assert_eq!((refused.status.as_u16(), &refused.problem()["level"]), (422, &json!("global")));
}

#[tokio::test(start_paused = true)]
async fn a_text_that_fits_no_lowered_threshold_waits() {
    let flags = ["--adapt", "receiver", "--receiver-limit", "4/1s", "--adapt-window", "1s"];
    let app = App::start(&flags).await;
    app.operator("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    let three_parts = "a".repeat(400);
    for number in 0..50 {
        text(&app, &format!("+4917010000{number:03}"), &three_parts).await;
        sleep(SECOND / 5).await;
    }
    assert_eq!(app.policies().await["receiver"]["effective"], "2/1s");
    let refused = text(&app, ALICE, &three_parts).await;
    assert_eq!((refused.status.as_u16(), refused.retry_after()), (503, Some(10)));
}
