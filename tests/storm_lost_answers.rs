//! A storm is told of once, also if the answer that tells of it is lost, or nobody waits for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::Redis;
use test_support::proxy::{Fault, Proxy};
use tower_sliding_window::storm::StormRule;
use tower_sliding_window::{RedisStore, StormDetector, StormEvent};

/// A detector behind a proxy, and what its hook is told.
struct Behind {
    redis: Redis,
    proxy: Proxy,
    detector: StormDetector,
    told: Arc<Mutex<Vec<StormEvent>>>,
}

impl Behind {
    async fn start(threshold: &str) -> Self {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.url().rsplit(':').next().unwrap().parse().unwrap()).await;
        let builder = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let store = builder.connect(proxy.url()).await.unwrap();
        let (told, rule) =
            (Arc::new(Mutex::new(Vec::new())), StormRule::new(threshold.parse().unwrap()));
        let heard = told.clone();
        let detector = StormDetector::new(rule, store)
            .unwrap()
            .on_event(move |event| heard.lock().unwrap().push(event.clone()));
        // Has the script loaded, so that a call is one request.
        detector.look("other").await.unwrap();
        Self { redis, proxy, detector, told }
    }

    async fn record(&self, ids: std::ops::Range<u32>) {
        for id in ids {
            self.detector.record("lobby", id.to_string()).await.unwrap();
        }
    }

    /// Waits until so many events have been told; returns for each whether it was a start.
    async fn told(&self, count: usize) -> Vec<bool> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let told: Vec<bool> =
                self.told.lock().unwrap().iter().map(StormEvent::is_start).collect();
            if told.len() >= count {
                return told;
            }
            assert!(tokio::time::Instant::now() < deadline, "only {told:?} was told");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn counted(&self) -> u32 {
        self.redis.run(&["ZCARD", "tsw:{=lobby}:default:5/1h:storm:log"]).await
    }
}

#[tokio::test]
async fn a_start_whose_answer_is_lost_is_told_once() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.drop_replies(1);
    let sixth = behind.detector.record("lobby", "5").await.unwrap();
    assert_eq!((behind.proxy.dropped(), sixth.count(), sixth.events().len()), (1, 6, 1));
    behind.record(5..9).await;
    behind.detector.flush().await;
    assert_eq!(behind.told(1).await, [true]);
    assert_eq!(behind.counted().await, 9);
}

#[tokio::test]
async fn a_start_whose_second_answer_is_lost_too_is_asked_for_later() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.drop_replies(2);
    let error = behind.detector.record("lobby", "5").await.unwrap_err();
    assert!(error.may_have_counted(), "{error}");
    assert_eq!(behind.told(1).await, [true]);
    // Delivered again, as a queue would: it is told to nobody else.
    let again = behind.detector.record("lobby", "5").await.unwrap();
    assert_eq!((again.count(), again.is_repeated(), again.events().len()), (6, true, 0));
    behind.detector.flush().await;
    assert_eq!(behind.told(1).await, [true]);
}

#[tokio::test]
async fn a_start_whose_caller_has_left_is_told_all_the_same() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.set(Fault::Delay(Duration::from_millis(300)));
    let patience = Duration::from_millis(50);
    let left = tokio::time::timeout(patience, behind.detector.record("lobby", "5")).await;
    assert!(left.is_err(), "it was not answered yet");
    behind.proxy.set(Fault::None);
    assert_eq!(behind.told(1).await, [true]);
    behind.record(5..9).await;
    behind.detector.flush().await;
    assert_eq!(behind.told(1).await, [true]);
}

#[tokio::test]
async fn an_end_whose_answer_is_lost_is_told_once() {
    let behind = Behind::start("5/500ms").await;
    behind.record(0..6).await;
    assert_eq!(behind.told(1).await, [true]);
    behind.proxy.drop_replies(3);
    assert_eq!(behind.told(2).await, [true, false]);
    assert_eq!(
        behind.proxy.dropped(),
        3,
        "those of a look, of its repetition, and of the next look"
    );
    behind.detector.settled().await;
    behind.detector.flush().await;
    assert_eq!(behind.told(2).await, [true, false]);
}
