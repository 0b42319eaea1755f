//! What a store guarantees for any order of calls from several processes.

use std::sync::Arc;

use uuid::Uuid;

use super::super::decision::Reason;
use super::super::store::{Fingerprint, MuteRequest, RecordedMessage, Rules};
use super::*;

contract_tests!(
    repeated_record_counts_once,
    texts_are_read_only_if_a_rule_may_trigger,
    of_two_concurrent_requests_one_mutes,
    repeated_mute_request_owns_the_mute,
    late_request_never_shortens_a_mute,
    mute_begins_at_the_message,
);

fn message(rules: &[&str], text: &str) -> RecordedMessage {
    RecordedMessage {
        id: Uuid::new_v4(),
        sender: "alice".into(),
        peer: Some("bob".into()),
        text: Some(Fingerprint::of(text)),
        rules: Arc::new(Rules::new(super::rules(rules))),
    }
}

/// Records a message, and returns a request to mute its sender.
async fn request(world: &World, sender: &str, rule: &str) -> MuteRequest {
    let message = RecordedMessage { sender: sender.into(), ..message(&[rule], "") };
    let timestamp = world.store.record(&message).await.unwrap().timestamp;
    let reason = Reason::new(rule.parse().unwrap(), 3, 0);
    MuteRequest {
        id: message.id,
        timestamp,
        sender: message.sender,
        reason,
        first_mutes: Arc::default(),
    }
}

/// Returns how long the mute lasts, whether the request has caused it, and whether it was lengthened.
async fn mute(world: &World, request: &MuteRequest) -> (Option<Duration>, bool, bool) {
    let outcome = world.store.mute(request).await.unwrap();
    (outcome.mute.map(|mute| mute.remaining()), outcome.by_this, outcome.lengthened)
}

async fn repeated_record_counts_once(mut world: World) {
    let rules = ["events 9/1m mute 1h", "peers 9/1m mute 1h", "similar 2/1m 90% mute 1h"];
    let [one, two] = [message(&rules, "one"), message(&rules, "two")];
    for _ in 0..3 {
        let history = world.store.record(&one).await.unwrap();
        assert_eq!(history.counts, [1, 1, 1]);
        assert!(history.texts.is_empty(), "a message is not compared with itself");
        world.clock.advance(Duration::from_secs(1)).await;
    }
    let history = world.store.record(&two).await.unwrap();
    assert_eq!(history.counts, [2, 1, 2]);
    assert_eq!(
        history.texts,
        [(Duration::from_secs(3), Fingerprint::of("one"))],
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
            let reason = Reason::new(rules[0].parse().unwrap(), 3, 0);
            let RecordedMessage { id, sender, .. } = message;
            let (timestamp, first_mutes) = (history.timestamp, Arc::default());
            mute(&world, &MuteRequest { id, timestamp, sender, reason, first_mutes }).await;
        }
        read.push((history.counts, history.texts.len()));
    }
    // The peers rule is first, because its mute is longer. Texts are not read during the other mute.
    let counts = |peers, texts| vec![peers, texts];
    assert_eq!(read, [(counts(1, 1), 0), (counts(1, 2), 0), (counts(1, 3), 2), (counts(1, 0), 0)]);
}

async fn of_two_concurrent_requests_one_mutes(mut world: World) {
    for sender in ["the earlier first", "the later first"] {
        let mut requests = Vec::new();
        for _ in 0..2 {
            requests.push(request(&world, sender, "events 2/1m mute 1h").await);
            world.clock.advance(Duration::from_millis(3)).await;
        }
        if sender == "the later first" {
            requests.reverse();
        }
        let (remaining, by_this, lengthened) = mute(&world, &requests[0]).await;
        assert_eq!((by_this, lengthened), (true, false), "{sender}");
        let second = mute(&world, &requests[1]).await;
        assert_eq!(second, (remaining, false, false), "nothing changes: {sender}");
    }
}

async fn repeated_mute_request_owns_the_mute(mut world: World) {
    for (rule, is_longer) in [("events 2/1m mute 1h", false), ("events 3/1m mute 2h", true)] {
        let request = request(&world, "alice", rule).await;
        for _ in 0..2 {
            let (_, by_this, lengthened) = mute(&world, &request).await;
            assert_eq!((by_this, lengthened), (true, is_longer));
            world.clock.advance(Duration::from_millis(50)).await;
        }
    }
}

async fn late_request_never_shortens_a_mute(mut world: World) {
    let early = request(&world, "alice", "events 3/1m mute 3601s").await;
    world.clock.advance(Duration::from_secs(5)).await;
    let late = request(&world, "alice", "events 2/1m mute 1h").await;
    mute(&world, &late).await;
    assert_eq!(mute(&world, &early).await, (Some(hours(1)), false, false));
}

async fn mute_begins_at_the_message(mut world: World) {
    for (wait, remaining) in [(10, None), (4, Some(Duration::from_secs(6)))] {
        let request = request(&world, "alice", "events 2/1m mute 10s").await;
        world.clock.advance(Duration::from_secs(wait)).await;
        let outcome = mute(&world, &request).await;
        assert_eq!(outcome, (remaining, remaining.is_some(), false), "after {wait} s");
    }
}
