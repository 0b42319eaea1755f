//! An institution that sends far too much costs the others nothing, however short the bucket is.

use std::collections::BTreeMap;

use super::{App, SECOND};

type Statuses = BTreeMap<u16, usize>;

/// Sends from two institutions for three seconds: from `shop` a hundred messages for each of `bank`, every
/// twentieth of a second. Counts the statuses.
async fn flooded(app: &App) -> [Statuses; 2] {
    let mut statuses = [Statuses::new(), Statuses::new()];
    for number in 0..60 {
        for message in 0..100 {
            let to = format!("+1666{:07}", number * 100 + message);
            *statuses[0].entry(app.sms("shop", &to).await.status.as_u16()).or_default() += 1;
        }
        let answer = app.sms("bank", &format!("+1555{number:07}")).await;
        *statuses[1].entry(answer.status.as_u16()).or_default() += 1;
        tokio::time::sleep(SECOND / 20).await;
    }
    statuses
}

/// The quotas admit a minute's messages at once, which the bucket does not hold.
#[tokio::test(start_paused = true)]
async fn a_burst_leaves_the_others_their_tokens() {
    let flags =
        ["--institution-limit", "2400/60s", "--channel-limit", "9999/1s", "--global", "80/1s"];
    let [shop, bank] = flooded(&App::start(&flags).await).await;
    assert_eq!(bank, Statuses::from([(202, 60)]), "shop: {shop:?}");
    // Its half of the bucket and of the rate, and what the other leaves of its half.
    assert!((200..=240).contains(&shop[&202]), "{shop:?}");
}

/// One server of four gets all messages: it has a quarter of the tokens.
#[tokio::test(start_paused = true)]
async fn a_server_with_too_many_messages_shares_fairly() {
    let flags = ["--institution-limit", "80/1s", "--servers", "4", "--global", "40/1s"];
    let [shop, bank] = flooded(&App::start(&flags).await).await;
    assert_eq!(bank, Statuses::from([(202, 60)]), "shop: {shop:?}");
    assert!(shop[&503] > 0, "{shop:?}");
}

/// An institution that is alone has all tokens.
#[tokio::test(start_paused = true)]
async fn tokens_that_others_leave_are_used() {
    let flags = ["--institution-limit", "80/1s", "--servers", "4", "--global", "40/1s"];
    let app = App::start(&flags).await;
    let mut sent = 0;
    for number in 0..400 {
        sent += usize::from(app.sms("bank", &format!("+1555{number:07}")).await.status == 202);
        tokio::time::sleep(SECOND / 100).await;
    }
    assert!((155..=200).contains(&sent), "40 a second for four seconds: {sent}");
}

/// A small institution may send its hour's messages at once, beside a large one that is busy.
#[tokio::test(start_paused = true)]
async fn a_small_institution_may_send_at_once() {
    let flags = ["--institution", "shop=2400/60s", "--institution", "bank=10/1h"];
    let more = ["--channel-limit", "9999/1s", "--global", "41/1s"];
    let app = App::start(&[&flags[..], &more].concat()).await;
    for number in 0..1000 {
        app.sms("shop", &format!("+1666{number:07}")).await;
    }
    for number in 0..10 {
        assert_eq!(app.sms("bank", &format!("+1555{number:07}")).await.status, 202, "{number}");
    }
}
