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

#[tokio::test]
async fn known_mute_ends_in_an_outage() {
    let mut redis = Redis::start().await;
    let monitor = monitor(&redis, "similar 2/1m 90% mute 1h").await;
    monitor.mute("alice", Duration::from_secs(2)).await.unwrap();
    redis.kill();
    assert!(!says(&monitor, "alice").await.unwrap());
    eventually("the mute ends", async || says(&monitor, "alice").await.is_err()).await;
}

#[tokio::test]
async fn known_mute_holds_in_an_outage_if_the_journal_is_full() {
    let mut redis = Redis::start().await;
    let store = RedisStore::builder().local_capacity(10).connect(redis.url()).await.unwrap();
    let rule: Rule = "similar 2/1m 90% mute 1h".parse().unwrap();
    let monitor = SpeechMonitor::on_redis([rule], &store);
    assert!(says(&monitor, "alice").await.unwrap());
    assert!(!says(&monitor, "alice").await.unwrap());
    redis.kill();
    assert!(!says(&monitor, "alice").await.unwrap());
    // Another part of the application, with the same store.
    let limiter =
        tower_sliding_window::Limiter::new(tower_sliding_window::Quota::per_hour(5), store);
    for user in 0..20_u32 {
        let _ = limiter.check(user).await;
    }
    assert!(!says(&monitor, "alice").await.unwrap(), "a mute that this process has imposed holds");
}
