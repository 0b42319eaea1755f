//! How long mutes last, and which mute wins.

use super::*;

contract_tests!(
    mute_ends_at_the_exact_microsecond,
    longer_mute_wins_in_any_order,
    muted_messages_do_not_lengthen_the_mute,
    sender_that_never_stops_is_muted_again,
    unmuted_sender_starts_without_history,
    monitor_without_rules_respects_mutes,
    senders_are_independent,
    first_mutes_are_short_and_grow,
);

async fn mute_ends_at_the_exact_microsecond(world: World) {
    let mut chat = world.chat(rules(&["events 2/1s mute 10s"]));
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

async fn longer_mute_wins_in_any_order(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h", "similar 5/5m 90% mute 12h"]));
    // The seconds of messages, each with the second at which the active mute began, and its hours.
    type Messages = &'static [(u64, u64, u64)];
    let later: Messages = &[(0, 0, 0), (10, 0, 0), (20, 20, 6), (30, 20, 6), (40, 40, 12)];
    let at_once: Messages = &[(0, 0, 0), (100, 0, 0), (200, 0, 0), (250, 0, 0), (255, 255, 12)];
    let silent = [(0, 0, 0), (70, 0, 0), (140, 0, 0), (210, 0, 0), (280, 280, 12)];
    // The shorter mute changes nothing, even late in the long mute when it would end later.
    let more = [1, 2, 3, 10, 42_840, 42_841, 42_842, 42_843].map(|after| (280 + after, 280, 12));
    let first = [&silent[..], &more].concat();
    let mut start = Duration::ZERO;
    for (messages, audit) in [
        (later, &[(6, false), (12, true)][..]),
        (&first, &[(12, false)]),
        (at_once, &[(12, false)]),
    ] {
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

async fn muted_messages_do_not_lengthen_the_mute(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for at in 0..500 {
        chat.at(f64::from(at)).await.says("buy cheap gold").await;
    }
    // The fifth message came at second 4.
    let until = hours(12) + Duration::from_secs(4);
    assert_eq!(chat.mute().await.unwrap().remaining(), until - chat.at);
    assert_eq!(chat.audit(), [(6, false), (12, true)]);
}

async fn sender_that_never_stops_is_muted_again(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
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

async fn unmuted_sender_starts_without_history(world: World) {
    let chat = world.chat(Rule::recommended());
    for _ in 0..6 {
        chat.says("buy cheap gold").await;
        chat.writes_to("bob").await;
    }
    assert!(chat.mute().await.is_some());
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.mute().await, None);
    assert_eq!(chat.says("buy cheap gold").await, None, "earlier messages are deleted");
    assert_eq!(chat.says("buy cheap gold").await, None);
    assert!(chat.says("buy cheap gold").await.is_some());
    chat.monitor.unmute("bob").await.unwrap();
}

async fn monitor_without_rules_respects_mutes(world: World) {
    let chat = world.chat(rules(&["events 2/1s mute 10s"]));
    let other = SpeechMonitor::new([], chat.world.store.clone());
    let message = Message::from("alice").text("hello");
    for _ in 0..5 {
        assert!(other.check(&message).await.unwrap().is_delivered());
    }
    assert_eq!(chat.says("one").await, None);
    assert!(chat.says("two").await.is_some());
    assert!(!other.check(&message).await.unwrap().is_delivered());
}

async fn senders_are_independent(world: World) {
    let chat = world.chat(Rule::recommended());
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

async fn first_mutes_are_short_and_grow(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h", "peers 2/1m mute 12h"]));
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
