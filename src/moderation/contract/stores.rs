//! What a store guarantees for any order of calls from several processes.

use std::sync::Arc;

use uuid::Uuid;

use super::super::decision::Reason;
use super::super::rules::Rules;
use super::super::store::{History, MuteOutcome, MuteRequest, RecordedMessage};
use super::*;

contract_tests!(
    repeated_record_counts_once,
    texts_are_read_only_if_a_rule_may_trigger,
    of_two_concurrent_requests_one_mutes,
    repeated_mute_request_owns_the_mute,
    late_request_never_shortens_a_mute,
    request_for_an_expired_mute_does_nothing,
    mute_begins_at_the_message,
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

fn flags(outcome: &MuteOutcome) -> (bool, bool) {
    (outcome.by_this, outcome.lengthened)
}

async fn repeated_record_counts_once(mut world: World) {
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
        "the first call sets the timestamp"
    );
}

async fn texts_are_read_only_if_a_rule_may_trigger(world: World) {
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
    // The peers rule is first, because its mute is longer. Texts are not read during the other mute.
    let counts = |peers, texts| vec![peers, texts];
    assert_eq!(read, [(counts(1, 1), 0), (counts(1, 2), 0), (counts(1, 3), 2), (counts(1, 0), 0)]);
}

async fn of_two_concurrent_requests_one_mutes(mut world: World) {
    let rule = "events 2/1m mute 1h";
    for sender in ["the earlier first", "the later first"] {
        let mut message = [message(&[rule], ""), message(&[rule], "")];
        let mut requests = Vec::new();
        for message in &mut message {
            message.sender = sender.into();
            let history = world.store.record(message).await.unwrap();
            assert_eq!(history.mute, None, "there is no mute yet");
            requests.push(request(message, &history, rule));
            world.advance(Duration::from_millis(3)).await;
        }
        if sender == "the later first" {
            requests.reverse();
        }
        let first = world.store.mute(&requests[0]).await.unwrap();
        assert_eq!(flags(&first), (true, false), "{sender}");
        let until = first.mute.unwrap().remaining();
        let second = world.store.mute(&requests[1]).await.unwrap();
        assert_eq!(flags(&second), (false, false), "{sender}");
        assert_eq!(second.mute.unwrap().remaining(), until, "nothing changes: {sender}");
    }
}

async fn repeated_mute_request_owns_the_mute(mut world: World) {
    let [short, long] = ["events 2/1m mute 1h", "events 3/1m mute 2h"];
    let message = message(&[short], "");
    let history = world.store.record(&message).await.unwrap();
    for _ in 0..2 {
        let outcome = world.store.mute(&request(&message, &history, short)).await.unwrap();
        assert_eq!(flags(&outcome), (true, false));
        world.advance(Duration::from_millis(50)).await;
    }
    let later = self::message(&[short], "");
    let history = world.store.record(&later).await.unwrap();
    for _ in 0..2 {
        let outcome = world.store.mute(&request(&later, &history, long)).await.unwrap();
        assert_eq!(flags(&outcome), (true, true));
        world.advance(Duration::from_millis(50)).await;
    }
}

async fn late_request_never_shortens_a_mute(mut world: World) {
    let [short, long] = ["events 2/1m mute 1h", "events 3/1m mute 3601s"];
    let early = message(&[short], "");
    let early_history = world.store.record(&early).await.unwrap();
    world.advance(Duration::from_secs(5)).await;
    let late = message(&[short], "");
    let late_history = world.store.record(&late).await.unwrap();
    world.store.mute(&request(&late, &late_history, short)).await.unwrap();
    let outcome = world.store.mute(&request(&early, &early_history, long)).await.unwrap();
    assert_eq!(flags(&outcome), (false, false));
    assert_eq!(outcome.mute.unwrap().remaining(), hours(1));
}

async fn request_for_an_expired_mute_does_nothing(mut world: World) {
    let rule = "events 2/1m mute 10s";
    let message = message(&[rule], "");
    let history = world.store.record(&message).await.unwrap();
    world.advance(Duration::from_secs(10)).await;
    let outcome = world.store.mute(&request(&message, &history, rule)).await.unwrap();
    assert_eq!((outcome.mute, outcome.by_this), (None, false));
}

async fn mute_begins_at_the_message(mut world: World) {
    let rule = "events 2/1m mute 10s";
    let message = message(&[rule], "");
    let history = world.store.record(&message).await.unwrap();
    world.advance(Duration::from_secs(4)).await;
    let outcome = world.store.mute(&request(&message, &history, rule)).await.unwrap();
    assert_eq!(outcome.mute.unwrap().remaining(), Duration::from_secs(6));
}
