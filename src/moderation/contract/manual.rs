//! Manual mutes and their pages, exempt senders, and texts that are too short to count.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::MuteCursor;
use super::super::decision::Reason;
use super::super::store::MuteRequest;
use super::*;
use crate::key::Key;

contract_tests!(
    manual_mute_begins_now_and_ends,
    manual_mute_replaces_one_that_ends_earlier,
    longer_rule_lengthens_a_manual_mute,
    repeated_manual_request_changes_nothing,
    exempt_sender_triggers_no_rule,
    manual_mute_holds_for_exempt_sender,
    manual_mute_replaces_one_that_does_not_hold,
    short_texts_do_not_count,
    every_mute_is_in_a_page,
);

async fn manual_mute_begins_now_and_ends(world: World) {
    let mut chat = world.chat([]);
    chat.at(5.0).await;
    let mute = chat.monitor.mute("alice", hours(1)).await.unwrap();
    assert_eq!((mute.is_manual(), mute.remaining()), (true, hours(1)));
    assert_eq!(mute.rule().to_string(), "manual mute 1h");
    assert_eq!(mute.reason().to_string(), "a manual mute");
    assert_eq!(chat.says("hello").await, Some(mute));
    let last = Duration::from_secs(5) + hours(1) - MICROSECOND;
    assert!(chat.at_exactly(last).await.says("hello").await.is_some());
    assert_eq!(chat.at_exactly(last + MICROSECOND).await.says("hello").await, None);
    assert_eq!(chat.audit(), [(1, false)]);
}

async fn manual_mute_replaces_one_that_ends_earlier(world: World) {
    let mut chat = world.chat(rules(&["similar 2/1m 90% mute 12h"]));
    chat.says("buy cheap gold").await;
    assert!(chat.says("buy cheap gold").await.is_some());
    chat.at_exactly(hours(11)).await;
    // Shorter than the twelve hours, but ends later.
    let mute = chat.monitor.mute("alice", hours(6)).await.unwrap();
    assert_eq!((mute.is_manual(), mute.remaining()), (true, hours(6)));
    let mute = chat.monitor.mute("alice", hours(2)).await.unwrap();
    assert_eq!(mute.remaining(), hours(6), "a mute is never shortened");
    assert_eq!(chat.audit(), [(12, false), (6, true)]);
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.mute().await, None);
}

async fn longer_rule_lengthens_a_manual_mute(world: World) {
    let chat = world.chat(rules(&["similar 2/1m 90% mute 12h", "events 2/1m mute 1h"]));
    chat.monitor.mute("alice", hours(6)).await.unwrap();
    assert!(chat.says("buy cheap gold").await.unwrap().is_manual());
    let mute = chat.says("buy cheap gold").await.unwrap();
    assert_eq!((mute.is_manual(), mute.remaining()), (false, hours(12)));
    assert_eq!(chat.audit(), [(6, false), (12, true)]);
}

async fn repeated_manual_request_changes_nothing(mut world: World) {
    let reason = Reason::new(Rule::manual(hours(1)), 0, 0);
    let (id, timestamp, sender) = (Uuid::new_v4(), Duration::ZERO, "alice".into());
    let request = MuteRequest { id, timestamp, sender, reason, first_mutes: Arc::default() };
    for seconds in 0..3 {
        let outcome = world.store.mute(&request).await.unwrap();
        let remaining = hours(1) - Duration::from_secs(seconds);
        assert_eq!(outcome.mute.unwrap().remaining(), remaining, "a lost reply does not lengthen");
        assert_eq!((outcome.by_this, outcome.lengthened), (true, false));
        world.clock.advance(Duration::from_secs(1)).await;
    }
}

async fn exempt_sender_triggers_no_rule(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for _ in 0..3 {
        chat.says("buy cheap gold").await;
    }
    assert!(chat.mute().await.is_some());
    chat.monitor = chat.monitor.exempt(["support", "alice"]).exempt([*b"bob"]);
    for peer in 0..20 {
        let message = Message::from("support").to(peer.to_string()).text("how can I help?");
        assert_eq!(chat.send(message).await, None);
        assert_eq!(chat.send(Message::from("bob").text("buy cheap gold")).await, None);
    }
    assert_eq!(chat.says("buy cheap gold").await, None, "the mute is of a rule");
    assert_eq!(chat.mute().await, None);
    assert_eq!(chat.audit(), [(6, false)]);
    chat.use_rules(Rule::recommended());
    assert!(chat.mute().await.is_some(), "for other monitors she is muted");
    let message = Message::from("support").text("how can I help?");
    assert_eq!(chat.send(message.clone()).await, None);
    assert_eq!(chat.send(message).await, None, "nothing was recorded");
}

async fn manual_mute_holds_for_exempt_sender(world: World) {
    let mut chat = world.chat(Rule::recommended());
    chat.monitor = chat.monitor.exempt(["alice"]);
    chat.monitor.mute("alice", hours(1)).await.unwrap();
    assert!(chat.says("hello").await.unwrap().is_manual());
    assert!(chat.mute().await.is_some());
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.says("hello").await, None);
}

async fn manual_mute_replaces_one_that_does_not_hold(world: World) {
    let mut chat = world.chat(rules(&["similar 2/1m 90% mute 12h"]));
    chat.says("buy cheap gold").await;
    assert!(chat.says("buy cheap gold").await.is_some());
    chat.monitor = chat.monitor.exempt(["alice"]);
    assert_eq!(chat.says("hello").await, None);
    let mute = chat.monitor.mute("alice", hours(1)).await.unwrap();
    assert!(mute.is_manual() && mute.remaining() >= hours(12), "a mute is never shortened");
    assert!(chat.says("hello").await.is_some());
    assert_eq!(chat.audit(), [(12, false), (12, true)]);
}

async fn short_texts_do_not_count(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% min 6 mute 6h"]));
    for _ in 0..10 {
        assert_eq!(chat.says("o k !!!").await, None, "three characters: ok!");
        assert_eq!(chat.says("").await, None);
    }
    assert_eq!(chat.says("abcde").await, None);
    assert_eq!(chat.says("abcde").await, None);
    // Similar to the texts above, but those are too short to count.
    chat.use_rules(rules(&["similar 3/1m 80% min 6 mute 6h", "similar 9/1m 80% mute 1h"]));
    assert_eq!(chat.says("abcdef").await, None);
    assert_eq!(chat.says("abcde").await, None);
    assert_eq!(chat.says("abcdef").await, None);
    assert_eq!(chat.says("abcdef").await.unwrap().reason().count(), 3);
}

async fn every_mute_is_in_a_page(world: World) {
    let mut chat = world.chat(rules(&["events 2/1m mute 1h"]));
    let long = "k".repeat(1000);
    let names: Vec<Key> = (0..50).map(|it| Key::from(format!("a}}b{it}"))).collect();
    let senders = names.into_iter().chain([long.as_str().into(), (*b"\xff=").into()]);
    let senders: BTreeSet<Key> = senders.collect();
    for sender in &senders {
        chat.monitor.mute(sender.clone(), hours(2)).await.unwrap();
    }
    chat.says("one").await;
    chat.monitor.mute("lifted", hours(2)).await.unwrap();
    chat.monitor.unmute("lifted").await.unwrap();
    chat.monitor.mute("ended", hours(1)).await.unwrap();
    chat.at_exactly(hours(1)).await;

    let (mut next, mut found, mut pages) = (Some(MuteCursor::default()), BTreeSet::new(), 0);
    while let Some(cursor) = next {
        let page = chat.monitor.mutes(cursor, 10).await.unwrap();
        for (sender, mute) in page.mutes {
            assert_eq!((mute.is_manual(), mute.remaining()), (true, hours(1)));
            found.insert(sender);
        }
        (next, pages) = (page.next, pages + 1);
    }
    assert!(found == senders, "{} of {}", found.len(), senders.len());
    assert!((3..20).contains(&pages), "{pages} pages");
}
