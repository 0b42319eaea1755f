//! A storm is reported once, also if its reply is lost or its caller has hung up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, patient_store};
use tower_sliding_window::storm::StormRule;
use tower_sliding_window::{StormDetector, StormEvent};

/// A detector behind a proxy, and the events of its hook.
struct Behind {
    redis: Redis,
    proxy: Proxy,
    detector: StormDetector,
    reported: Arc<Mutex<Vec<StormEvent>>>,
}

impl Behind {
    async fn start(threshold: &str) -> Self {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        let store = patient_store(proxy.url()).await;
        let (reported, rule) =
            (Arc::new(Mutex::new(Vec::new())), StormRule::new(threshold.parse().unwrap()));
        let heard = reported.clone();
        let detector = StormDetector::new(rule, store)
            .unwrap()
            .on_event(move |event| heard.lock().unwrap().push(event.clone()));
        // Has the script loaded, so that a call is one request.
        detector.look("other").await.unwrap();
        Self { redis, proxy, detector, reported }
    }

    async fn record(&self, ids: std::ops::Range<u32>) {
        for id in ids {
            self.detector.record("lobby", id.to_string()).await.unwrap();
        }
    }

    /// Waits for so many events, and returns for each whether it was a start.
    async fn reported(&self, count: usize) -> Vec<bool> {
        eventually("the events come", async || self.reported.lock().unwrap().len() >= count).await;
        self.reported.lock().unwrap().iter().map(StormEvent::is_start).collect()
    }

    async fn counted(&self) -> u32 {
        self.redis.run(&["ZCARD", "tsw:{=lobby}:default:5/1h:storm:log"]).await
    }
}

#[tokio::test]
async fn lost_start_reply_is_reported_once() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.drop_replies(1);
    let sixth = behind.detector.record("lobby", "5").await.unwrap();
    assert_eq!((behind.proxy.dropped(), sixth.count(), sixth.events().len()), (1, 6, 1));
    behind.record(5..9).await;
    behind.detector.flush().await;
    assert_eq!(behind.reported(1).await, [true]);
    assert_eq!(behind.counted().await, 9);
}

#[tokio::test]
async fn start_is_reported_after_two_lost_replies() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.drop_replies(2);
    let error = behind.detector.record("lobby", "5").await.unwrap_err();
    assert!(error.may_have_counted(), "{error}");
    assert_eq!(behind.reported(1).await, [true]);
    // Delivered again, as a queue would: it is not reported again.
    let again = behind.detector.record("lobby", "5").await.unwrap();
    assert_eq!((again.count(), again.is_repeated(), again.events().len()), (6, true, 0));
    behind.detector.flush().await;
    assert_eq!(behind.reported(1).await, [true]);
}

#[tokio::test]
async fn start_is_reported_after_a_hang_up() {
    let behind = Behind::start("5/1h").await;
    behind.record(0..5).await;
    behind.proxy.set(Fault::Delay(Duration::from_millis(300)));
    let patience = Duration::from_millis(50);
    let left = tokio::time::timeout(patience, behind.detector.record("lobby", "5")).await;
    assert!(left.is_err(), "it was not answered yet");
    behind.proxy.set(Fault::None);
    assert_eq!(behind.reported(1).await, [true]);
    behind.record(5..9).await;
    behind.detector.flush().await;
    assert_eq!(behind.reported(1).await, [true]);
}

#[tokio::test]
async fn lost_end_reply_is_reported_once() {
    let behind = Behind::start("5/500ms").await;
    behind.record(0..6).await;
    assert_eq!(behind.reported(1).await, [true]);
    behind.proxy.drop_replies(3);
    assert_eq!(behind.reported(2).await, [true, false]);
    assert_eq!(
        behind.proxy.dropped(),
        3,
        "those of a look, of its repetition, and of the next look"
    );
    behind.detector.settled().await;
    behind.detector.flush().await;
    assert_eq!(behind.reported(2).await, [true, false]);
}
