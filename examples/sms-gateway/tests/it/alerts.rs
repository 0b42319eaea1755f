//! Alerts: in the log, and at a webhook.

use std::sync::{Arc, Mutex};

use axum::routing::post;
use axum::{Json, Router};
use serde_json::Value;
use test_support::eventually;

use crate::{policies_until, shown, sms, start, stop};

/// Takes alerts on a port of its own. Returns the URL, and what it has taken.
async fn receiver() -> (String, Arc<Mutex<Vec<Value>>>) {
    let taken = Arc::<Mutex<Vec<Value>>>::default();
    let alerts = taken.clone();
    let take = post(async move |Json(alert): Json<Value>| alerts.lock().unwrap().push(alert));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/alerts/secret-path", listener.local_addr().unwrap());
    let app = Router::new().route("/alerts/secret-path", take);
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, taken)
}

#[tokio::test]
async fn an_alert_names_the_institution() {
    let (url, taken) = receiver().await;
    let flags = ["--alert-window", "2s", "--alert-least", "5", "--institution-limit", "1/1h"];
    let server = start(&[&flags[..], &["--alert-webhook", &url]].concat());
    let is_on = async || shown(&server, "/policies").await["institution"]["alert"] == true;
    let mut number = 0;
    sms(&server, "bank", "+15550000000").await;
    while !is_on().await {
        number += 1;
        assert!(number < 10_000, "no alert begins");
        sms(&server, "shop", &format!("+1666{number:07}")).await;
    }
    policies_until(&server, |policies| policies["institution"]["alert"] == false).await;
    eventually("both have come", async || taken.lock().unwrap().len() == 2).await;
    let logs = stop(server);
    let lines = |part: &str| -> Vec<&str> { logs.lines().filter(|it| it.contains(part)).collect() };
    let (begun, over) = (lines("alert: a level refuses too much"), lines("the alert is over"));
    assert_eq!((begun.len(), over.len()), (1, 1), "{logs}");
    for line in [begun[0], over[0]] {
        let parts = ["WARN", r#"level="institution""#, r#"institution="shop""#];
        assert!(parts.iter().all(|part| line.contains(part)), "{logs}");
    }
    for key in ["1666", "1555", "bank", "otp", "secret-path"] {
        assert!(!logs.contains(key), "{key} does not belong in logs at info: {logs}");
    }
    let taken = taken.lock().unwrap();
    for (alert, what) in taken.iter().zip(["begun", "over"]) {
        assert_eq!((&alert["alert"], &alert["level"]), (&what.into(), &"institution".into()));
        assert_eq!((&alert["institution"], &alert["above"]), (&"shop".into(), &"20%".into()));
    }
}

#[tokio::test]
async fn a_dead_webhook_delays_nothing() {
    let flags = ["--alert-least", "1", "--receiver-limit", "1/1h"];
    let webhook = ["--alert-webhook", "http://127.0.0.1:1/"];
    let server = start(&[&flags[..], &webhook].concat());
    eventually("an alert begins", async || {
        sms(&server, "bank", "+15550000000").await;
        shown(&server, "/policies").await["receiver"]["alert"] == true
    })
    .await;
    assert_eq!(sms(&server, "bank", "+15550000001").await.status, 202);
    stop(server);
}
