//! Policies that change while the gateway runs.

use serde_json::json;
use tokio::time::advance;

use crate::policies::LOOK_EVERY;
use crate::{App, ROOMY, SECOND, violated};
use test_support::requests::send;

#[tokio::test(start_paused = true)]
async fn a_changed_policy_applies_at_once_and_counts_what_was() {
    let app = App::start(&[&ROOMY[..], &["--receiver-limit", "9/60s"]].concat()).await;
    for _ in 0..3 {
        assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
        advance(SECOND).await;
    }
    let changed = app.ask("PUT", "/policies/receiver", r#""2/60s""#).await;
    assert_eq!(changed.status, 200);
    assert_eq!(changed.body, r#"{"configured":"2/60s","effective":"2/60s"}"#);
    let denied = app.sms("bank", "otp", "+491701234567").await;
    assert_eq!(violated(&denied), json!(["receiver"]));
    // It is the second newest that has to leave.
    assert_eq!(denied.retry_after(), Some(58));
    app.ask("PUT", "/policies/receiver", " 4/60s\n").await;
    assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    violated(&app.sms("bank", "otp", "+491701234567").await);
    assert_eq!(app.policies().await["version"], 2);
}

#[tokio::test(start_paused = true)]
async fn institutions_follow_the_level_unless_they_have_a_threshold_of_their_own() {
    let flags = ["--institution", "bank=7/1s", "--institution", "shop", "--institution", "club"];
    let app = App::start(&flags).await;
    app.ask("PUT", "/policies/institution", "50/1s").await;
    app.ask("PUT", "/policies/institution/club", "8/1s").await;
    app.ask("PUT", "/policies/institution", "60/1s").await;
    let institution = &app.policies().await["institution"];
    assert_eq!(institution["configured"], "60/1s");
    for (name, policy) in [("bank", "7/1s"), ("shop", "60/1s"), ("club", "8/1s")] {
        let expected = json!({ "configured": policy, "effective": policy });
        assert_eq!(institution["institutions"][name], expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_breaks_the_sum_changes_nothing_and_shows_it() {
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
        assert_eq!(problem["terms"][0]["institution"], "bank");
        assert_eq!(problem["terms"].as_array().unwrap().len(), 2);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("--global") && detail.contains("bank"), "{detail}");
        assert_eq!(app.policies().await, before);
    }
    assert_eq!(app.ask("PUT", "/policies/institution", "250/1s").await.status, 200);
    assert_eq!(app.ask("PUT", "/policies/channel", "99999/1s").await.status, 200);
    assert_eq!(app.ask("PUT", "/policies/receiver", "99999/1s").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn only_this_machine_may_look_at_policies_or_change_them() {
    let app = App::start(&[]).await;
    for (method, path) in [
        ("GET", "/policies"),
        ("PUT", "/policies/channel"),
        ("GET", "/downstream"),
        ("PUT", "/downstream"),
    ] {
        for (peer, local) in
            [("192.0.2.7:9", false), ("[2001:db8::1]:9", false), ("[::ffff:192.0.2.7]:9", false)]
                .into_iter()
                .chain([("127.8.8.8:9", true), ("[::1]:9", true), ("[::ffff:127.0.0.1]:9", true)])
        {
            let answer = send(&app.0, App::request(method, path, peer, "1/1s")).await;
            assert_eq!(answer.status != 403, local, "{method} {path} {peer}: {answer:?}");
        }
    }
    let mut request = App::request("GET", "/policies", "127.0.0.1:9", "");
    request.extensions_mut().clear();
    assert_eq!(send(&app.0, request).await.status, 403, "nobody knows who it is");
}

#[test]
fn servers_look_often_enough_for_a_change_to_hold_everywhere_within_a_second() {
    assert!(2 * LOOK_EVERY <= SECOND);
}
