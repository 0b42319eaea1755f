//! What a store promises whatever the order in which processes ask it.

use std::sync::Arc;

use uuid::Uuid;

use super::super::decision::Reason;
use super::super::rules::Rules;
use super::super::store::{History, MuteOutcome, MuteRequest, RecordedMessage};
use super::*;

contract_tests!(
    a_message_told_of_twice_counts_once,
    texts_are_read_only_if_they_could_complete_a_rule,
    of_two_who_find_the_same_at_once_one_mutes,
    a_mute_whose_answer_was_lost_is_still_that_messages,
    a_late_imposition_never_makes_a_mute_shorter,
    an_imposition_that_comes_when_it_would_be_over_does_nothing,
    a_mute_counts_from_the_message_and_not_from_when_it_is_imposed,
);

fn message(rules: &[&str], text: &str) -> RecordedMessage {
    RecordedMessage {
        id: Uuid::new_v4(),
        sender: "alice".into(),
        peer: Some("bob".into()),
        text: Some(Arc::from(text)),
        rules: Arc::new(Rules::new(super::rules(rules))),
    }
}

fn request(message: &RecordedMessage, history: &History, rule: &str) -> MuteRequest {
    let reason = Reason::new(rule.parse().unwrap(), 3, 0);
    MuteRequest {
        id: message.id,
        timestamp: history.timestamp,
        sender: message.sender.clone(),
        reason,
    }
}

fn outcome(imposed: &MuteOutcome) -> (bool, bool) {
    (imposed.by_this, imposed.lengthened)
}

async fn a_message_told_of_twice_counts_once(mut world: World) {
    let rules = ["events 9/1m mute 1h", "peers 9/1m mute 1h", "similar 2/1m 90% mute 1h"];
    let [one, two] = [message(&rules, "one"), message(&rules, "two")];
    for _ in 0..3 {
        let history = world.store.record(&one).await.unwrap();
        assert_eq!(history.counts, [1, 1, 1]);
        assert!(history.texts.is_empty(), "a message is not compared with itself");
        world.advance(Duration::from_secs(1)).await;
    }
    let history = world.store.record(&two).await.unwrap();
    assert_eq!(history.counts, [2, 1, 2]);
    assert_eq!(
        history.texts,
        [(Duration::from_secs(3), Arc::from("one"))],
        "the timestamp is that of the first"
    );
}

async fn texts_are_read_only_if_they_could_complete_a_rule(world: World) {
    let rules = ["similar 3/1m 90% mute 6h", "peers 3/1m mute 24h"];
    let mut read = Vec::new();
    for text in ["one", "two", "three", "four"] {
        let message = message(&rules, text);
        let history = world.store.record(&message).await.unwrap();
        if text == "three" {
            world.store.mute(&request(&message, &history, rules[0])).await.unwrap();
        }
        read.push((history.counts, history.texts.len()));
    }
    // Peers first, for their mute is longer. Under the mute of the other there is no more to learn.
    let counts = |peers, texts| vec![peers, texts];
    assert_eq!(read, [(counts(1, 1), 0), (counts(1, 2), 0), (counts(1, 3), 2), (counts(1, 0), 0)]);
}

async fn of_two_who_find_the_same_at_once_one_mutes(mut world: World) {
    let rule = "events 2/1m mute 1h";
    for sender in ["the earlier first", "the later first"] {
        let mut message = [message(&[rule], ""), message(&[rule], "")];
        let mut found = Vec::new();
        for message in &mut message {
            message.sender = sender.into();
            let history = world.store.record(message).await.unwrap();
            assert_eq!(history.mute, None, "neither has muted yet");
            found.push(request(message, &history, rule));
            world.advance(Duration::from_millis(3)).await;
        }
        if sender == "the later first" {
            found.reverse();
        }
        let first = world.store.mute(&found[0]).await.unwrap();
        assert_eq!(outcome(&first), (true, false), "{sender}");
        let until = first.mute.unwrap().remaining();
        let second = world.store.mute(&found[1]).await.unwrap();
        assert_eq!(outcome(&second), (false, false), "{sender}");
        assert_eq!(second.mute.unwrap().remaining(), until, "nothing moves: {sender}");
    }
}

async fn a_mute_whose_answer_was_lost_is_still_that_messages(mut world: World) {
    let [short, long] = ["events 2/1m mute 1h", "events 3/1m mute 2h"];
    let message = message(&[short], "");
    let history = world.store.record(&message).await.unwrap();
    for _ in 0..2 {
        let imposed = world.store.mute(&request(&message, &history, short)).await.unwrap();
        assert_eq!(outcome(&imposed), (true, false));
        world.advance(Duration::from_millis(50)).await;
    }
    let later = self::message(&[short], "");
    let history = world.store.record(&later).await.unwrap();
    for _ in 0..2 {
        let imposed = world.store.mute(&request(&later, &history, long)).await.unwrap();
        assert_eq!(outcome(&imposed), (true, true));
        world.advance(Duration::from_millis(50)).await;
    }
}

async fn a_late_imposition_never_makes_a_mute_shorter(mut world: World) {
    let [short, long] = ["events 2/1m mute 1h", "events 3/1m mute 3601s"];
    let early = message(&[short], "");
    let early_history = world.store.record(&early).await.unwrap();
    world.advance(Duration::from_secs(5)).await;
    let late = message(&[short], "");
    let late_history = world.store.record(&late).await.unwrap();
    world.store.mute(&request(&late, &late_history, short)).await.unwrap();
    let imposed = world.store.mute(&request(&early, &early_history, long)).await.unwrap();
    assert_eq!(outcome(&imposed), (false, false));
    assert_eq!(imposed.mute.unwrap().remaining(), hours(1));
}

async fn an_imposition_that_comes_when_it_would_be_over_does_nothing(mut world: World) {
    let rule = "events 2/1m mute 10s";
    let message = message(&[rule], "");
    let history = world.store.record(&message).await.unwrap();
    world.advance(Duration::from_secs(10)).await;
    let imposed = world.store.mute(&request(&message, &history, rule)).await.unwrap();
    assert_eq!((imposed.mute, imposed.by_this), (None, false));
}

async fn a_mute_counts_from_the_message_and_not_from_when_it_is_imposed(mut world: World) {
    let rule = "events 2/1m mute 10s";
    let message = message(&[rule], "");
    let history = world.store.record(&message).await.unwrap();
    world.advance(Duration::from_secs(4)).await;
    let imposed = world.store.mute(&request(&message, &history, rule)).await.unwrap();
    assert_eq!(imposed.mute.unwrap().remaining(), Duration::from_secs(6));
}
