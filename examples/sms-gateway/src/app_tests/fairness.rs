//! An institution that sends far too much costs the others nothing, however short the bucket, a channel,
//! a destination or a receiver is.

use std::collections::BTreeMap;

use super::{ALICE, App, SECOND, SHARE, message};

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

/// The channel has room for less than the institutions may send together.
#[tokio::test(start_paused = true)]
async fn a_flood_leaves_the_others_their_share_of_a_channel() {
    let flags = ["--channel-limit", "80/1s"];
    let [shop, bank] = flooded(&App::start(&[&flags[..], &SHARE].concat()).await).await;
    assert_eq!(bank, Statuses::from([(202, 60)]), "shop: {shop:?}");
    assert!((120..=160).contains(&shop[&202]), "half of the channel: {shop:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_institution_block_no_code_of_another() {
    let app = App::start(&SHARE).await;
    for _ in 0..10 {
        app.sms("shop", ALICE).await;
    }
    app.is_sent("bank", ALICE).await;
    app.is_sent("bank", ALICE).await;
    app.refused_by("bank", ALICE, &["receiver-share:2/60s", "receiver:4/60s"]).await;
    // A text that no wait makes fit in the share.
    let long = app.post(message("bank", "otp", "+4917010000001", &"a".repeat(400))).await;
    assert_eq!((long.status.as_u16(), &long.problem()["most"]), (422, &2.into()));
}

/// Pumping: messages to many numbers of a block, each of which gets one.
#[tokio::test(start_paused = true)]
async fn a_destination_has_a_quota_and_others_are_refused() {
    let flags = ["--destination", "+49", "--destination", "+4915=4/1h", "--destination-limit"];
    let app = App::start(&[&flags[..], &["9/1h"], &SHARE].concat()).await;
    app.is_sent("shop", "+4915110000001").await;
    app.is_sent("shop", "+4915110000002").await;
    app.refused_by("shop", "+490151/10000003", &["destination-share"]).await;
    app.is_sent("bank", "+4915110000003").await;
    app.is_sent("shop", ALICE).await;
    for to in ["+15550000001", "+882161000001"] {
        let refused = app.sms("shop", to).await;
        assert_eq!(refused.status, 403, "{refused:?}");
        assert_eq!(refused.problem()["type"], "/problems/unknown-destination");
    }
    assert_eq!(app.operator("PUT", "/destinations/+1", "").await.status, 201);
    app.is_sent("shop", "+15550000001").await;
    assert_eq!(app.operator("PUT", "/policies/destination/+4915", "2/1h").await.status, 200);
    app.refused_by("bank", "+4915110000004", &["destination-share", "destination"]).await;
    assert_eq!(app.operator("PUT", "/destinations/49", "").await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_is_one_however_it_is_written() {
    let app = App::start(&["--receiver-limit", "1/1h"]).await;
    app.is_sent("bank", ALICE).await;
    for to in ["+4901701234567", "0049 170 1234567", "+49 (0)170/123-4567"] {
        app.refused_by("bank", to, &["receiver"]).await;
    }
}
