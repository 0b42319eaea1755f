//! How long mutes last, which mute wins, manual mutes, exempt senders, and short texts.

use std::collections::BTreeSet;

use tower_sliding_window::{BanCursor, Key};

use super::*;

on_both!(each_rule_mutes_once, unmuted_sender_starts_without_history, short_texts_do_not_count,);

#[tokio::test(start_paused = true)]
async fn mute_ends_at_the_exact_microsecond() {
    let mut chat = Chat::in_process().with_rules(&["events 2/1s mute 10s"]);
    chat.says("a").await;
    assert!(chat.says("b").await.is_some());
    let last = Duration::from_secs(10) - MICROSECOND;
    let mute = chat.at_exactly(last).await.mute().await.unwrap();
    assert_eq!(mute.remaining(), MICROSECOND);
    assert!(chat.says("c").await.is_some(), "the mute lasts until its last microsecond");
    assert_eq!(chat.at(10.0).await.mute().await, None);
    let again = chat.at(11.0).await.says("d").await;
    assert_eq!(again, None, "both the mute and its messages have expired");
    assert_eq!(chat.audit().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn mute_becomes_longer_never_shorter() {
    let texts = ["similar 3/1m 90% mute 6h", "similar 5/5m 90% mute 12h"];
    let mut chat = Chat::in_process().with_rules(&texts);
    // The seconds of messages, each with the second at which the mute that stands began, and its hours.
    type Messages = &'static [(u64, u64, u64)];
    let later: Messages = &[(0, 0, 0), (10, 0, 0), (20, 20, 6), (30, 20, 6), (40, 40, 12)];
    let at_once: Messages = &[(0, 0, 0), (100, 0, 0), (200, 0, 0), (250, 0, 0), (255, 255, 12)];
    // The shorter mute changes nothing, even late in the long mute when it would end later.
    let first: Messages = &[
        (0, 0, 0),
        (70, 0, 0),
        (140, 0, 0),
        (210, 0, 0),
        (280, 280, 12),
        (281, 280, 12),
        (282, 280, 12),
        (21_000, 280, 12),
        (21_001, 280, 12),
        (21_002, 280, 12),
        (42_840, 280, 12),
        (42_841, 280, 12),
        (42_842, 280, 12),
        (42_843, 280, 12),
    ];
    let mut start = Duration::ZERO;
    for (messages, audit) in
        [(later, &[(6, false), (12, true)][..]), (first, &[(12, false)]), (at_once, &[(12, false)])]
    {
        for &(second, began, length) in messages {
            let at = start + Duration::from_secs(second);
            let mute = chat.at_exactly(at).await.says("buy cheap gold").await;
            let until = mute.map_or(Duration::ZERO, |mute| mute.remaining() + at - start);
            let expected = Duration::from_secs(began) + hours(length);
            assert_eq!(until, expected, "{second} in {messages:?}");
        }
        assert_eq!(chat.audit(), audit);
        chat.events.lock().unwrap().clear();
        start += hours(24);
    }
}

async fn each_rule_mutes_once(chat: Chat) {
    let mut chat = chat.with_rules(&["similar 5/5m 90% mute 12h", "similar 3/1m 90% mute 6h"]);
    for at in 0..100 {
        chat.at(f64::from(at)).await.says("buy cheap gold").await;
    }
    assert_eq!(hours_left(&chat.mute().await.unwrap()), 12);
    assert_eq!(chat.audit(), [(6, false), (12, true)]);
}

#[tokio::test(start_paused = true)]
async fn sender_that_never_stops_is_muted_again() {
    let mut chat = Chat::in_process().with_rules(&["similar 3/1m 90% mute 6h"]);
    let mut delivered = Vec::new();
    for minute in 0..1200 {
        let at = f64::from(minute) * 20.0;
        if chat.at(at).await.says("buy cheap gold").await.is_none() {
            delivered.push(at);
        }
    }
    assert_eq!(delivered, [0.0, 20.0], "later messages are not delivered");
    assert_eq!(chat.audit(), [(6, false), (6, false)]);
}

async fn unmuted_sender_starts_without_history(chat: Chat) {
    let chat = chat.with_rules(&["similar 3/1m 90% mute 6h", "peers 2/1m mute 12h"]);
    for _ in 0..6 {
        chat.says("buy cheap gold").await;
        chat.writes_to("bob").await;
    }
    assert!(chat.mute().await.is_some());
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.mute().await, None);
    assert_eq!(chat.says("buy cheap gold").await, None, "earlier messages are forgotten");
    assert_eq!(chat.says("buy cheap gold").await, None);
    assert!(chat.says("buy cheap gold").await.is_some(), "the rule can mute again");
    assert_eq!(chat.audit(), [(6, false), (6, false)]);
    chat.monitor.unmute("bob").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn first_mutes_are_short_and_grow() {
    let texts = ["similar 3/1m 90% mute 6h", "peers 2/1m mute 12h"];
    let mut chat = Chat::in_process().with_rules(&texts);
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    chat.monitor = chat.monitor.first_mutes([minutes(10), hours(1)]);
    let mut lengths = Vec::new();
    let day = hours(24);
    for start in [minutes(0), day, 2 * day, 3 * day, 5 * day] {
        chat.at_exactly(start).await;
        for _ in 0..2 {
            assert_eq!(chat.says("buy cheap gold").await, None);
        }
        let mute = chat.says("buy cheap gold").await.unwrap();
        // No further rule makes the mute a later one.
        chat.writes_to("a").await;
        let longer = chat.writes_to("b").await.unwrap();
        lengths.push((mute.remaining(), longer.remaining()));
    }
    let (first, second) = ((minutes(10), minutes(10)), (hours(1), hours(1)));
    let full = (hours(6), hours(12));
    assert_eq!(lengths, [first, second, full, full, first]);
    // A manual mute is as long as it says.
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.monitor.mute("alice", hours(2)).await.unwrap().remaining(), hours(2));
}

#[tokio::test(start_paused = true)]
async fn manual_mute_begins_now_and_ends() {
    let mut chat = Chat::in_process().with_rules(&["similar 2/1m 90% mute 12h"]);
    chat.at(5.0).await;
    let mute = chat.monitor.mute("alice", hours(1)).await.unwrap();
    assert_eq!((mute.rule(), mute.remaining()), (None, hours(1)));
    assert_eq!(mute.reason(), "a manual mute");
    assert_eq!(chat.says("hello").await, Some(mute));
    assert_eq!(chat.monitor.mute("alice", hours(0)).await.unwrap().remaining(), hours(1));
    let last = Duration::from_secs(5) + hours(1) - MICROSECOND;
    assert!(chat.at_exactly(last).await.says("hello").await.is_some());
    assert_eq!(chat.at_exactly(last + MICROSECOND).await.says("hello").await, None);
    assert_eq!(chat.audit(), [(1, false)]);

    // A rule lengthens a manual mute, and a manual mute one of a rule.
    chat.monitor.mute("alice", hours(6)).await.unwrap();
    for _ in 0..2 {
        chat.says("buy cheap gold").await;
    }
    assert_eq!(hours_left(&chat.mute().await.unwrap()), 12);
    let mute = chat.monitor.mute("alice", hours(24)).await.unwrap();
    assert_eq!((mute.rule(), mute.remaining()), (None, hours(24)));
    assert_eq!(chat.audit(), [(1, false), (6, false), (12, true), (24, true)]);
}

#[tokio::test(start_paused = true)]
async fn exempt_sender_triggers_no_rule() {
    let mut chat = Chat::in_process();
    chat.use_rules(Rule::recommended());
    let rules_for_all = chat.monitor.clone();
    chat.monitor = chat.monitor.exempt(["support", "alice"]).exempt([*b"bob"]);
    for peer in 0..20 {
        let message = Message::from("support").to(peer.to_string()).text("how can I help?");
        assert_eq!(chat.send(message).await, None);
        assert_eq!(chat.send(Message::from("bob").text("buy cheap gold")).await, None);
    }
    assert_eq!(chat.audit(), []);
    let message = Message::from("support").text("how can I help?");
    for _ in 0..2 {
        assert!(
            rules_for_all.check(&message).await.unwrap().is_delivered(),
            "nothing was recorded"
        );
    }
    chat.monitor.mute("alice", hours(1)).await.unwrap();
    assert!(chat.says("hello").await.is_some(), "a mute that stands holds");
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.says("hello").await, None);
}

async fn short_texts_do_not_count(chat: Chat) {
    let mut chat = chat.with_rules(&["similar 3/1m 90% min 6 mute 6h"]);
    for _ in 0..10 {
        assert_eq!(chat.says("o k !!!").await, None, "three characters: ok!");
        assert_eq!(chat.says("").await, None);
    }
    for _ in 0..3 {
        assert_eq!(chat.says("abcde").await, None);
    }
    // Similar to these texts, but those are too short to count.
    chat.use_rules(rules(&["similar 3/1m 80% min 6 mute 6h", "similar 9/1m 80% min 0 mute 1h"]));
    for text in ["abcdef", "abcde", "abcdef"] {
        assert_eq!(chat.says(text).await, None);
    }
    assert!(chat.says("abcdef").await.unwrap().reason().contains(": 3 messages"));
}

#[tokio::test(start_paused = true)]
async fn every_mute_is_in_a_page() {
    let mut chat = Chat::in_process().with_rules(&["events 2/1m mute 1h"]);
    let senders: BTreeSet<Key> = (0..50).map(|it| Key::from(format!("a}}b{it}"))).collect();
    for sender in &senders {
        chat.monitor.mute(sender.clone(), hours(2)).await.unwrap();
    }
    chat.says("one").await;
    chat.monitor.mute("lifted", hours(2)).await.unwrap();
    chat.monitor.unmute("lifted").await.unwrap();
    chat.monitor.mute("ended", hours(1)).await.unwrap();
    chat.at_exactly(hours(1)).await;
    let (mut next, mut found) = (Some(BanCursor::default()), BTreeSet::new());
    while let Some(cursor) = next {
        let (mutes, after) = chat.monitor.mutes(cursor, 10).await.unwrap();
        assert!(mutes.iter().all(|(_, mute)| mute.remaining() == hours(1)));
        found.extend(mutes.into_iter().map(|(sender, _)| sender));
        next = after;
    }
    assert!(found == senders, "{} of {}", found.len(), senders.len());
}

#[tokio::test(start_paused = true)]
async fn senders_and_monitors_are_independent() {
    let chat = Chat::in_process().with_rules(&["similar 3/1m 90% mute 6h"]);
    let long = "k".repeat(1000);
    let senders: [&[u8]; 8] =
        [b"", b"=", b"}", b"{}", b"a\r\nb", b"\0", b"\xff\xfe", long.as_bytes()];
    for number in 0..3 {
        for sender in senders {
            let message = Message::from(sender).to(sender).text("buy cheap gold");
            assert_eq!(chat.send(message).await.is_some(), number == 2, "{sender:?}");
        }
    }
    assert_eq!(chat.audit(), [(6, false); 8]);
    assert_eq!(chat.says("buy cheap gold").await, None);
}

/// A text of 500 characters, 1,500 bytes, that is like no other.
fn long(number: u32) -> String {
    let character = |at: u32| char::from_u32(0x4e00 + (number * 499 + at * (number + 7)) % 20_000);
    (0..500).filter_map(character).collect()
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_a_new_spammer_is_found() {
    let monitor = SpeechMonitor::with_budget(Rule::recommended(), 50_000);
    let says = async |sender: &str| {
        let message = Message::from(sender).text("buy cheap gold at example.com ".repeat(20));
        monitor.check(&message).await.unwrap().is_delivered()
    };
    assert!(says("bob").await && says("bob").await && !says("bob").await);
    for number in 0..700 {
        tokio::time::advance(MICROSECOND).await;
        let stranger = if number % 2 == 0 { number } else { number % 100 };
        let message = Message::from(format!("stranger-{stranger}")).text(long(number));
        assert!(monitor.check(&message).await.unwrap().is_delivered());
        assert!(monitor.bytes() <= 50_000, "{}", monitor.bytes());
        if number % 7 == 0 {
            let name = number.to_string();
            assert!(says(&name).await && says(&name).await);
            assert!(!says(&name).await, "spammer {number} is muted");
        }
    }
    assert!(!says("bob").await, "a mute stays");
    tokio::time::advance(hours(100)).await;
    assert!(says("alice").await);
}

#[tokio::test(start_paused = true)]
async fn rule_lengthens_no_longer_manual_mute() {
    let mut chat = Chat::in_process().with_rules(&["events 2/1m mute 12h"]);
    chat.says("one").await;
    assert!(chat.says("two").await.is_some());
    chat.monitor.mute("alice", hours(24)).await.unwrap();
    chat.at_exactly(hours(13)).await.says("three").await;
    chat.says("four").await;
    assert_eq!(chat.audit(), [(12, false), (24, true)], "the rule has muted her already");
}

#[tokio::test(start_paused = true)]
async fn forgotten_sender_is_not_reported_again() {
    let hook = Arc::new(Mutex::new(0));
    let heard = hook.clone();
    let monitor = SpeechMonitor::with_budget(Rule::recommended(), 50_000)
        .on_mute(move |_| *heard.lock().unwrap() += 1);
    let spams = async || {
        for _ in 0..3 {
            let _ = monitor.check(&Message::from("bob").text("buy cheap gold")).await.unwrap();
        }
        *hook.lock().unwrap()
    };
    assert_eq!(spams().await, 1);
    for number in 0..200 {
        tokio::time::advance(MICROSECOND).await;
        let message = Message::from(format!("stranger-{number}")).text(long(number));
        assert!(monitor.check(&message).await.unwrap().is_delivered());
    }
    assert_eq!(spams().await, 1, "the mute stands, and each rule lengthens it only once");
}
