//! What Redis does for the speech monitor happens once, also if its reply is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use speech_monitor::{Message, Rule, SpeechDecision, SpeechMonitor};
use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, patient_store};
use tower_sliding_window::{RedisStore, StoreError};

fn rules() -> Vec<Rule> {
    ["events 4/1h mute 2h", "similar 4/1h 90% mute 1h"].map(|text| text.parse().unwrap()).into()
}

async fn behind(redis: &Redis) -> (Proxy, RedisStore) {
    let proxy = Proxy::to(redis.port()).await;
    let store = patient_store(proxy.url()).await;
    (proxy, store)
}

/// Has the scripts loaded, so that a call is one request.
async fn load(monitor: &SpeechMonitor) {
    let _ = monitor.check(&Message::from("bob").text("hello")).await.unwrap();
    assert_eq!(monitor.mute_of("bob").await.unwrap(), None);
}

#[tokio::test]
async fn message_of_lost_reply_counts_once() {
    let redis = Redis::start().await;
    let (proxy, store) = behind(&redis).await;
    let monitor = SpeechMonitor::on_redis(rules(), &store);
    load(&monitor).await;
    for number in 1..=3 {
        proxy.drop_replies(1);
        let message = Message::from("alice").text("buy cheap gold");
        assert!(monitor.check(&message).await.unwrap().is_delivered());
        assert_eq!(proxy.dropped(), number, "the answer was lost");
    }
    for log in ["messages", "prints"] {
        let held: usize = redis.run(&["ZCARD", &format!("tsw:{{=alice}}:speech:log:{log}")]).await;
        assert_eq!(held, 3, "{log}");
    }
}

/// A monitor behind a proxy. The next message mutes its sender.
struct Behind {
    redis: Redis,
    proxy: Proxy,
    monitor: SpeechMonitor,
    reported: Arc<AtomicUsize>,
}

/// What only the call has that imposes the mute.
const IMPOSES: &str = "4 messages within";

impl Behind {
    async fn start() -> Self {
        let redis = Redis::start().await;
        let (proxy, store) = behind(&redis).await;
        let reported = Arc::new(AtomicUsize::new(0));
        let heard = reported.clone();
        let monitor = SpeechMonitor::on_redis(rules(), &store).on_mute(move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        });
        load(&monitor).await;
        let behind = Self { redis, proxy, monitor, reported };
        for _ in 0..3 {
            assert!(behind.check().await.unwrap().is_delivered());
        }
        behind
    }

    async fn check(&self) -> Result<SpeechDecision, StoreError> {
        self.monitor.check(&Message::from("alice").text("buy cheap gold")).await
    }

    /// Waits until a mute is reported.
    async fn reported(&self) -> usize {
        eventually("the hook hears", async || self.reported.load(Ordering::Relaxed) > 0).await;
        self.reported.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn mute_of_a_lost_reply_is_reported_once() {
    let behind = Behind::start().await;
    behind.proxy.drop_replies_to(IMPOSES, 1);
    let error = behind.check().await.unwrap_err();
    assert!(error.may_have_counted() && behind.proxy.dropped() == 1, "{error}");
    assert_eq!(behind.redis.run::<usize>(&["EXISTS", "tsw:{=alice}:speech:ban"]).await, 1);
    assert_eq!(behind.reported().await, 1);
    assert!(!behind.check().await.unwrap().is_delivered());
    behind.monitor.settled().await;
    assert_eq!(behind.reported().await, 1, "it is reported once");
}

#[tokio::test]
async fn mute_is_reported_after_a_hang_up() {
    let behind = Behind::start().await;
    behind.proxy.set(Fault::Delay(Duration::from_millis(300)));
    // The look for a mute and the record take one delay each.
    let left = tokio::time::timeout(Duration::from_millis(750), behind.check()).await;
    assert!(left.is_err(), "the reply to the mute is still under way");
    behind.proxy.set(Fault::None);
    assert_eq!(behind.reported().await, 1);
}

#[tokio::test]
async fn a_lost_reply_does_not_undo_an_unmute() {
    let behind = Behind::start().await;
    behind.proxy.drop_replies_to(IMPOSES, 1);
    assert!(behind.check().await.is_err());
    let other = SpeechMonitor::on_redis([], &behind.redis.store().await);
    other.unmute("alice").await.unwrap();
    behind.monitor.settled().await;
    assert_eq!(behind.monitor.mute_of("alice").await.unwrap(), None);
    assert_eq!(behind.reported.load(Ordering::Relaxed), 0);
}
