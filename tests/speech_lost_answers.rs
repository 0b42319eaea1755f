//! What Redis has done for the speech monitor is done once, also if its answer is lost.

#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proxy::Proxy;
use support::Redis;
use tower_sliding_window::moderation::store::{
    History, Imposed, Imposition, SpeechStore, Utterance,
};
use tower_sliding_window::moderation::{Message, Mute, Rule, SpeechMonitor};
use tower_sliding_window::store::StoreFuture;
use tower_sliding_window::{Key, RedisStore};

fn rules() -> Vec<Rule> {
    ["events 4/1h mute 2h", "similar 4/1h 90% mute 1h"].map(|text| text.parse().unwrap()).into()
}

async fn behind(redis: &Redis) -> (Proxy, RedisStore) {
    let proxy = Proxy::to(redis.url().rsplit(':').next().unwrap().parse().unwrap()).await;
    let builder = RedisStore::builder().response_timeout(Duration::from_secs(10));
    let store = builder.connect(proxy.url()).await.unwrap();
    (proxy, store)
}

/// Has the scripts loaded, so that a call is one request.
async fn load(monitor: &SpeechMonitor) {
    let _ = monitor.check(&Message::from("bob").text("hello")).await.unwrap();
    assert_eq!(monitor.mute_of("bob").await.unwrap(), None);
}

#[tokio::test]
async fn a_message_whose_answer_is_lost_counts_once() {
    let redis = Redis::start().await;
    let (proxy, store) = behind(&redis).await;
    let monitor = SpeechMonitor::new(rules(), store);
    load(&monitor).await;
    for number in 1..=3 {
        proxy.drop_replies(1);
        let message = Message::from("alice").text("buy gold");
        assert!(monitor.check(&message).await.unwrap().is_delivered());
        assert_eq!(proxy.dropped(), number, "the answer was lost");
    }
    for log in ["messages", "texts"] {
        let held: usize = redis.run(&["ZCARD", &format!("tsw:{{=alice}}:speech:{log}")]).await;
        assert_eq!(held, 3, "{log}");
    }
}

/// Imposes mutes over another connection than that on which messages are recorded.
struct TwoWays {
    messages: RedisStore,
    mutes: RedisStore,
}

impl SpeechStore for TwoWays {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        self.messages.record(said)
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        self.mutes.mute(imposition)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        self.mutes.mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        self.messages.forget(sender)
    }
}

#[tokio::test]
async fn a_mute_whose_answer_is_lost_is_told_to_the_audit_once() {
    let redis = Redis::start().await;
    let (proxy, mutes) = behind(&redis).await;
    let events = Arc::new(AtomicUsize::new(0));
    let heard = events.clone();
    let monitor = SpeechMonitor::new(rules(), TwoWays { messages: redis.store().await, mutes })
        .on_mute(move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        });
    load(&monitor).await;
    for number in 1..=5 {
        if number == 4 {
            proxy.drop_replies(1);
        }
        let message = Message::from("alice").text("buy gold");
        assert_eq!(monitor.check(&message).await.unwrap().is_delivered(), number < 4);
    }
    assert_eq!((proxy.dropped(), events.load(Ordering::Relaxed)), (1, 1));
}
