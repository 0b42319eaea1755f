//! Mutes that a process knows of hold while Redis does not answer.

use std::time::Duration;

use speech_monitor::{Message, Rule, SpeechMonitor};
use test_support::{Redis, eventually};
use tower_sliding_window::{RedisStore, StoreError};

const HOUR: Duration = Duration::from_secs(3600);

async fn monitor(redis: &Redis, rule: &str) -> SpeechMonitor {
    let rule: Rule = rule.parse().unwrap();
    SpeechMonitor::on_redis([rule], &RedisStore::connect(redis.url()).await.unwrap())
}

/// Returns whether a message is delivered, or the error that leaves it to the chat.
async fn says(monitor: &SpeechMonitor, sender: &str) -> Result<bool, StoreError> {
    monitor.check(&Message::from(sender).text("buy cheap gold")).await.map(|it| it.is_delivered())
}

#[tokio::test]
async fn known_mute_holds_in_an_outage() {
    let mut redis = Redis::start_durable().await;
    let one = monitor(&redis, "similar 2/1m 90% mute 1h").await;
    let other = monitor(&redis, "similar 2/1m 90% mute 1h").await;
    for sender in ["alice", "bob", "carol", "dora"] {
        assert!(says(&one, sender).await.unwrap());
        assert!(!says(&one, sender).await.unwrap());
    }
    // Known from a check, and from a manual mute.
    assert!(!says(&other, "bob").await.unwrap());
    other.mute("erin", HOUR).await.unwrap();
    redis.kill();

    for sender in ["alice", "bob", "carol", "dora"] {
        assert!(!says(&one, sender).await.unwrap(), "{sender}");
    }
    for sender in ["bob", "erin"] {
        assert!(!says(&other, sender).await.unwrap(), "{sender}");
    }
    for sender in ["alice", "frank"] {
        assert!(says(&other, sender).await.is_err(), "it does not know of {sender}'s mute");
        assert!(other.mute_of(sender).await.is_err());
    }
    // A lift by this process holds too, although Redis has not heard of it.
    assert!(one.unmute("dora").await.is_err());
    assert!(says(&one, "dora").await.is_err());

    redis.start_again();
    let again = async || other.mute_of("frank").await.is_ok_and(|mute| mute.is_none());
    eventually("redis answers", again).await;
    assert!(!says(&other, "alice").await.unwrap());
}
