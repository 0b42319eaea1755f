//! Thresholds that follow the downstream.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use tokio::time::{advance, sleep};

use crate::controller::{Controller, Health, Targets};
use crate::share::Share;
use crate::{App, SECOND, violated};

fn targets() -> Targets {
    let (errors, floor) = (Share::thousandths(50), Share::thousandths(100));
    Targets { latency: Duration::from_millis(500), errors, window: 10 * SECOND, floor }
}

const FINE: Health = Health { results: 100, failed: 5, slow: 5 };
const FAILING: Health = Health { failed: 6, ..FINE };
const SLOW: Health = Health { slow: 6, ..FINE };

#[tokio::test(start_paused = true)]
async fn the_controller_lowers_fast_and_raises_slowly_within_its_bounds() {
    let mut controller = Controller::new(targets());
    let mut shares = Vec::new();
    for health in [FAILING, SLOW, FAILING, SLOW, FAILING, SLOW, FAILING, SLOW] {
        shares.push(controller.look(health).to_string());
        advance(10 * SECOND).await;
    }
    assert_eq!(shares, ["70%", "49%", "34.3%", "24%", "16.8%", "11.7%", "10%", "10%"]);
    let raised: Vec<_> = (0..20).map(|_| controller.look(FINE).to_string()).collect();
    assert_eq!(raised[..2], ["15%", "20%"]);
    assert_eq!(raised[17..], ["100%", "100%", "100%"]);
}

#[tokio::test(start_paused = true)]
async fn the_controller_waits_until_it_sees_what_its_last_decrease_has_done() {
    let mut controller = Controller::new(targets());
    let lowered = controller.look(FAILING);
    for _ in 0..9 {
        advance(SECOND).await;
        assert_eq!((controller.look(FAILING), controller.look(FINE)), (lowered, lowered));
    }
    advance(SECOND).await;
    assert!(controller.look(FAILING) < lowered);
}

#[tokio::test(start_paused = true)]
async fn the_controller_does_nothing_when_it_knows_nothing() {
    let mut controller = Controller::new(targets());
    let few = Health { results: 4, failed: 4, slow: 4 };
    assert_eq!(controller.look(few), Share::ALL, "four results are too few to lower anything");
    assert_eq!(controller.look(FINE), Share::ALL);
    let lowered = controller.look(FAILING);
    for _ in 0..100 {
        advance(SECOND).await;
        assert_eq!(controller.look(Health::default()), lowered);
    }
    let one = Health { results: 1, failed: 0, slow: 0 };
    assert!(controller.look(one) > lowered, "but one good result may raise");
}

proptest! {
    #[test]
    fn the_controller_never_leaves_its_bounds(
        floor in 0..=1000_u32,
        looks in prop::collection::vec((0..50_u64, 0..50_u64, 0..50_u64, 0..20_u64), 1..200),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let floor = Share::thousandths(floor);
            let mut controller = Controller::new(Targets { floor, ..targets() });
            let mut before = Share::ALL;
            for (results, failed, slow, seconds) in looks {
                advance(u32::try_from(seconds).unwrap() * SECOND).await;
                let health = Health { results, failed: failed.min(results), slow: slow.min(results) };
                let share = controller.look(health);
                assert!(floor <= share && share <= Share::ALL);
                assert!(results > 0 || share == before, "no input, no change");
                before = share;
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn thresholds_are_lowered_while_the_downstream_suffers_and_raised_after() {
    let flags =
        ["--institution-limit", "100/1s", "--adapt-floor", "20%", "--receiver-limit", "9999/1s"];
    let app = App::start(&flags).await;
    let effective = async || {
        let shown = app.policies().await;
        assert_eq!(shown["institution"]["configured"], "100/1s");
        assert_eq!(
            shown["institution"]["effective"],
            shown["institution"]["institutions"]["bank"]["effective"]
        );
        assert_eq!(shown["channel"]["effective"], "150/1s", "it is not adapted");
        let text = shown["institution"]["effective"].as_str().unwrap().to_owned();
        text.strip_suffix("/1s").unwrap().parse::<u32>().unwrap()
    };
    let run = async |seconds: u32| {
        for _ in 0..seconds {
            for _ in 0..10 {
                let app = app.clone();
                tokio::spawn(async move { app.sms("bank", "otp", "+491701234567").await });
            }
            sleep(SECOND).await;
        }
        effective().await
    };
    assert_eq!(run(30).await, 100);
    for knob in [r#"{"errors":"50%"}"#, r#"{"errors":"0%","latency":"501ms"}"#] {
        app.ask("PUT", "/downstream", knob).await;
        assert_eq!(run(9).await, 70, "{knob}");
        assert_eq!(run(100).await, 20, "{knob}");
        app.ask("PUT", "/downstream", r#"{"errors":"0%","latency":"499ms"}"#).await;
        let before = run(5).await;
        let after = run(13).await;
        assert!((20..100).contains(&after) && after > before, "{before} {after}");
        assert_eq!(run(30).await, 100, "{knob}");
    }
    // A change while thresholds are lowered is one of the configured threshold.
    app.ask("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    run(9).await;
    let changed = app.ask("PUT", "/policies/institution", "200/1s").await;
    assert_eq!(changed.body, r#"{"configured":"200/1s","effective":"140/1s"}"#);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_force_is_the_lowered_threshold() {
    let flags = ["--institution-limit", "10/1h", "--adapt", "institution", "--adapt", "receiver"];
    let app = App::start(&[&flags[..], &["--receiver-limit", "9999/1h"]].concat()).await;
    app.ask("PUT", "/downstream", r#"{"errors":"100%"}"#).await;
    for _ in 0..5 {
        assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 503);
    }
    sleep(2 * SECOND).await;
    assert_eq!(app.policies().await["receiver"]["effective"], "6999/1h");
    let changed = app.ask("PUT", "/policies/institution/shop", "1/1h").await;
    assert_eq!(changed.body, r#"{"configured":"1/1h","effective":"1/1h"}"#, "never none");
    app.ask("PUT", "/downstream", r#"{"errors":"0%"}"#).await;
    for _ in 0..7 {
        assert_eq!(app.sms("bank", "otp", "+491701234567").await.status, 202);
    }
    assert_eq!(violated(&app.sms("bank", "otp", "+491701234567").await), json!(["institution"]));
}
