//! Alerts, and the counts they are taken from.

use std::time::Duration;

use tokio::time::{advance, sleep};

use crate::alerts::{Alert, Bound, Change};
use crate::share::Share;
use crate::tally::Tally;
use crate::{App, SECOND};

fn bound() -> Bound {
    Bound { above: Share::thousandths(200), window: 60 * SECOND, least: 10 }
}

#[tokio::test(start_paused = true)]
async fn an_alert_begins_once_and_is_over_once() {
    let mut alert = Alert::new(bound());
    let count = |refused: u32, of: u32, alert: &mut Alert| {
        (0..of).for_each(|index| alert.count(index < refused));
    };
    count(2, 10, &mut alert);
    assert_eq!(alert.look(), None, "a fifth is not more than a fifth");
    count(1, 1, &mut alert);
    assert_eq!(alert.look(), Some(Change::Begun(Share::ratio(3, 11))));
    for _ in 0..100 {
        count(1, 4, &mut alert);
        assert_eq!(alert.look(), None, "it has begun already");
    }
    // About the bound it stays on: it is over at half of it.
    count(0, 200, &mut alert);
    assert_eq!(alert.look(), None);
    advance(63 * SECOND).await;
    count(2, 19, &mut alert);
    assert_eq!(alert.look(), None);
    count(0, 1, &mut alert);
    assert_eq!(alert.look(), Some(Change::Over(Share::thousandths(100))));
    assert_eq!(alert.look(), None);
    count(9, 9, &mut alert);
    assert!(matches!(alert.look(), Some(Change::Begun(_))));
    advance(63 * SECOND).await;
    assert_eq!(alert.look(), Some(Change::Over(Share::ratio(0, 0))), "nobody sends any more");
}

#[tokio::test(start_paused = true)]
async fn few_messages_are_no_alert() {
    let mut alert = Alert::new(bound());
    (0..9).for_each(|_| alert.count(true));
    assert_eq!(alert.look(), None);
    alert.count(true);
    assert_eq!(alert.look(), Some(Change::Begun(Share::ALL)));
}

#[tokio::test(start_paused = true)]
async fn alerts_are_about_the_level_that_refuses() {
    let flags = ["--receiver-limit", "1/1h", "--alert-above", "50%", "--alert-window", "10s"];
    let app = App::start(&flags).await;
    let on = async || {
        let shown = app.policies().await;
        ["global", "institution", "channel", "receiver"].map(|level| shown[level]["alert"] == true)
    };
    for _ in 0..20 {
        app.sms("bank", "otp", "+491701234567").await;
    }
    assert_eq!(on().await, [false; 4], "nobody has looked yet");
    sleep(SECOND).await;
    assert_eq!(on().await, [false, false, false, true]);
    for number in 0..500 {
        app.sms("bank", "otp", &format!("+49{:010}", 1_000_000_000 + number)).await;
    }
    sleep(SECOND).await;
    assert_eq!(
        on().await,
        [false, true, false, false],
        "most are too many for the institution now"
    );
    for number in 0..2000 {
        app.sms("shop", "otp", &format!("+49{:010}", 2_000_000_000_u64 + number)).await;
    }
    sleep(SECOND).await;
    assert_eq!(on().await, [true, true, false, false]);
    sleep(10 * SECOND).await;
    assert_eq!(on().await, [false; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_tally_counts_what_is_in_its_window() {
    let mut tally = Tally::<2>::new(20 * SECOND);
    tally.add([true, false]);
    advance(10 * SECOND).await;
    tally.add([true, true]);
    assert_eq!(tally.sum(), [2, 1]);
    advance(10 * SECOND - Duration::from_nanos(1)).await;
    assert_eq!(tally.sum(), [2, 1]);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(tally.sum(), [1, 1]);
    advance(10 * SECOND).await;
    assert_eq!(tally.sum(), [0, 0]);
    advance(1_000_000 * SECOND).await;
    tally.add([false, true]);
    assert_eq!(tally.sum(), [0, 1]);
}
