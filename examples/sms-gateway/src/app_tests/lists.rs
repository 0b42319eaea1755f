//! Thresholds, institutions and channels that change while the gateway runs.

use example_support::policies::LOOK_EVERY;
use serde_json::json;
use tokio::time::advance;

use super::{ALICE, App, ROOMY, SECOND, message};

#[tokio::test(start_paused = true)]
async fn a_changed_policy_applies_at_once() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "9/60s"]].concat()).await;
    for _ in 0..3 {
        app.is_sent("bank", ALICE).await;
        advance(SECOND).await;
    }
    let changed = app.operator("PUT", "/policies/receiver", r#""2/60s""#).await;
    assert_eq!(changed.body, r#"{"configured":"2/60s","effective":"2/60s"}"#);
    // Earlier messages count: the second newest has to leave.
    let denied = app.refused_by("bank", ALICE, &["receiver"]).await;
    assert_eq!(denied.retry_after(), Some(58));
    app.operator("PUT", "/policies/receiver", " 4/60s\n").await;
    app.is_sent("bank", ALICE).await;
    app.refused_by("bank", ALICE, &["receiver"]).await;
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
        let refused = app.operator("PUT", &format!("/policies/{target}"), policy).await;
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
        let refused = app.operator("PUT", &format!("/policies/{target}"), policy).await;
        assert_eq!(refused.status, status, "{target} {policy}");
        assert_eq!(app.policies().await, before);
    }
    assert_eq!(app.operator("PUT", "/policies/institution", "250/1s").await.status, 200);
    assert_eq!(app.operator("PUT", "/policies/channel", "99999/1s").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn only_channels_of_the_list_are_taken() {
    let flags = ["--channel", "otp=1/1h", "--channel", "news", "--channel-limit", "2/1h"];
    let app = App::start(&flags).await;
    for (channel, statuses) in [
        ("otp", &[202, 429][..]),
        ("news", &[202, 202, 429]),
        ("made-up", &[422, 422, 422]),
        ("made-up-too", &[422]),
    ] {
        for (index, status) in statuses.iter().enumerate() {
            let to = format!("+4917010000{index:03}");
            let answer = app.post(message("bank", channel, &to, "Hi")).await;
            assert_eq!(answer.status, *status, "{channel} {index}: {answer:?}");
            if *status == 422 {
                assert_eq!(answer.problem()["type"], "/problems/unknown-channel");
                assert!(!answer.body.contains("made-up"), "{answer:?}");
            }
        }
    }
    let channels = app.policies().await["channel"]["channels"].clone();
    assert_eq!(channels["otp"]["configured"], "1/1h");
    assert_eq!(channels["news"]["configured"], "2/1h");
    assert_eq!(channels.as_object().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_while_it_runs() {
    let app = App::start(&ROOMY).await;
    assert_eq!(app.sms("post", ALICE).await.status, 403);
    assert_eq!(app.operator("PUT", "/institutions/post", "").await.status, 201);
    app.is_sent("post", ALICE).await;
    assert_eq!(app.operator("PUT", "/institutions/post", "1/1h").await.status, 200);
    // The log of before was kept for a second: the hour begins now.
    app.is_sent("post", ALICE).await;
    app.refused_by("post", "+4917010000001", &["institution"]).await;
    assert_eq!(app.operator("DELETE", "/institutions/post", "").await.status, 204);
    assert_eq!(app.sms("post", ALICE).await.status, 403);
    // Its messages still count when it comes back.
    app.operator("PUT", "/institutions/post", "2/1h").await;
    app.is_sent("post", "+4917010000001").await;
    app.refused_by("post", "+4917010000002", &["institution"]).await;

    let news = || app.post(message("bank", "news", "+4917010000003", "Hi"));
    assert_eq!(news().await.status, 422);
    assert_eq!(app.operator("PUT", "/channels/news", "1/1h").await.status, 201);
    assert_eq!(news().await.status, 202);
    assert_eq!(news().await.problem()["violated-policies"], json!(["channel"]));
    assert_eq!(app.operator("DELETE", "/channels/news", "").await.status, 204);
    assert_eq!(news().await.status, 422);

    for (method, path, status) in [
        ("DELETE", "/channels/news", 404),
        ("DELETE", "/policies/channel/news", 404),
        ("DELETE", "/policies/channel", 405),
        ("DELETE", "/institutions/Bank", 422),
        ("PUT", "/channels/a%20b", 422),
        ("PUT", "/channels/%ff", 422),
        ("PUT", "/channels/", 404),
    ] {
        let refused = app.operator(method, path, "").await;
        assert_eq!(refused.status, status, "{method} {path}: {refused:?}");
        assert!(!refused.body.contains("a b"), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_override_follows_its_level() {
    let app = App::start(&["--institution", "bank=5/1h", "--institution-limit", "2/1h"]).await;
    app.is_sent("bank", ALICE).await;
    let follows = app.operator("DELETE", "/policies/institution/bank", "").await;
    assert_eq!(follows.body, r#"{"configured":"2/1h","effective":"2/1h"}"#);
    app.is_sent("bank", "+4917010000001").await;
    app.refused_by("bank", "+4917010000002", &["institution"]).await;
    app.operator("PUT", "/policies/institution", "3/1h").await;
    app.is_sent("bank", "+4917010000002").await;
    app.refused_by("bank", "+4917010000003", &["institution"]).await;
    assert_eq!(app.policies().await["institution"]["institutions"]["bank"]["follows_level"], true);
}

#[tokio::test(start_paused = true)]
async fn a_new_institution_counts_in_the_sum() {
    let app = App::start(&["--global", "250/1s", "--servers", "2"]).await;
    assert_eq!(app.operator("PUT", "/institutions/post", "301/1s").await.status, 409);
    assert_eq!(app.operator("PUT", "/institutions/post", "300/1s").await.status, 201);
    let refused = app.operator("PUT", "/institutions/more", "1/1h").await;
    assert_eq!((refused.status.as_u16(), &refused.problem()["servers"]), (409, &json!(2)));
    assert_eq!(app.operator("DELETE", "/institutions/shop", "").await.status, 204);
    assert_eq!(app.operator("PUT", "/institutions/more", "100/1s").await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn the_lists_are_bounded() {
    let app = App::start(&ROOMY).await;
    for number in 0..998 {
        let added = app.operator("PUT", &format!("/channels/c{number}"), "").await;
        assert_eq!(added.status, 201);
    }
    assert_eq!(app.operator("PUT", "/channels/more", "").await.status, 409);
    assert_eq!(app.operator("DELETE", "/channels/c7", "").await.status, 204);
    assert_eq!(app.operator("PUT", "/channels/more", "").await.status, 201);
}
