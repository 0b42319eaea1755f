//! The detector as an application uses it. What a check decides is tested in `checks`.

mod checks;
mod in_process;
mod lost_replies;
mod on_redis;

use std::sync::{Arc, Mutex};

use tower_sliding_window::RedisStore;

use crate::{StormDetector, StormEvent, StormRule};

fn rule(threshold: &str) -> StormRule {
    StormRule::new(threshold.parse().unwrap())
}

/// A detector, and the events that its hook got.
struct Watched {
    detector: StormDetector,
    events: Arc<Mutex<Vec<StormEvent>>>,
}

fn in_process(threshold: &str) -> StormDetector {
    StormDetector::in_process(rule(threshold)).unwrap()
}

impl Watched {
    fn in_process(threshold: &str) -> Self {
        Self::new(in_process(threshold))
    }

    fn on_redis(threshold: &str, store: &RedisStore) -> Self {
        Self::new(StormDetector::on_redis(rule(threshold), store).unwrap())
    }

    fn new(detector: StormDetector) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let detector = detector.on_event(move |event| sink.lock().unwrap().push(event.clone()));
        Self { detector, events }
    }

    async fn record(&self, group: &str, ids: std::ops::Range<u32>) {
        for id in ids {
            self.detector.record(group, id.to_string()).await.unwrap();
        }
    }

    /// Returns for each event so far whether it is a start.
    fn starts(&self) -> Vec<bool> {
        let is_start = |event: &StormEvent| matches!(event, StormEvent::Started { .. });
        self.events.lock().unwrap().iter().map(is_start).collect()
    }

    /// Returns for each event whether it is a start, after the last storm has ended.
    async fn all_starts(&self) -> Vec<bool> {
        self.detector.settled().await;
        self.starts()
    }
}
