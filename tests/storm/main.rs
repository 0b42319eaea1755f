//! The storm detector.

mod alerts;
mod detector;
mod lost_replies;

use std::sync::{Arc, Mutex};

use tower_sliding_window::storm::StormRule;
use tower_sliding_window::storm::store::StormStore;
use tower_sliding_window::storm::{StormDetector, StormEvent};

fn rule(threshold: &str) -> StormRule {
    StormRule::new(threshold.parse().unwrap())
}

/// A detector, and the events that its hook got.
struct Watched {
    detector: StormDetector,
    events: Arc<Mutex<Vec<StormEvent>>>,
}

impl Watched {
    fn new(threshold: &str, store: impl StormStore) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let detector = StormDetector::new(rule(threshold), store)
            .on_event(move |event| sink.lock().unwrap().push(event.clone()));
        Self { detector, events }
    }

    async fn record(&self, group: &str, ids: std::ops::Range<u32>) {
        for id in ids {
            self.detector.record(group, id.to_string()).await.unwrap();
        }
    }

    /// Returns for each event so far whether it is a start.
    async fn starts(&self) -> Vec<bool> {
        self.detector.flush().await;
        self.events.lock().unwrap().iter().map(StormEvent::is_start).collect()
    }

    /// Returns for each event whether it is a start, after the last storm has ended.
    async fn all_starts(&self) -> Vec<bool> {
        self.detector.settled().await;
        self.starts().await
    }
}
