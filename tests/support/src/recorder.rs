//! A recorder of metrics that tests can read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};

/// Keeps counters, and gauges as the bits of their value, by name and labels.
#[derive(Clone, Default)]
pub struct RecordedMetrics {
    cells: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    look_ups: Arc<AtomicU64>,
}

impl RecordedMetrics {
    fn cell(&self, key: &Key) -> Arc<AtomicU64> {
        self.look_ups.fetch_add(1, Ordering::SeqCst);
        let labels = key.labels().map(|it| format!("{}={}", it.key(), it.value()));
        let labels: Vec<String> = labels.collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        self.cells.lock().unwrap().entry(name).or_default().clone()
    }

    /// Records what this thread measures for as long as the guard lives.
    pub fn listen() -> (Self, LocalRecorderGuard<'static>) {
        let recorded: &'static Self = Box::leak(Box::default());
        (recorded.clone(), metrics::set_default_local_recorder(recorded))
    }

    /// Returns the value of a metric, 0 if there is none.
    pub fn count(&self, name: &str) -> u64 {
        self.cells.lock().unwrap().get(name).map_or(0, |cell| cell.load(Ordering::SeqCst))
    }

    /// Returns how often a metric was looked up by its name and labels.
    pub fn look_ups(&self) -> u64 {
        self.look_ups.load(Ordering::SeqCst)
    }

    /// Drops all metrics, as a recorder does with those that have been idle for a while.
    pub fn drop_idle(&self) {
        self.cells.lock().unwrap().clear();
    }

    /// Returns whether there is such a metric.
    pub fn knows(&self, name: &str) -> bool {
        self.cells.lock().unwrap().contains_key(name)
    }

    /// Returns the names of all metrics, with their labels.
    pub fn names(&self) -> Vec<String> {
        self.cells.lock().unwrap().keys().cloned().collect()
    }

    /// Returns the gauge of the connection to Redis.
    pub fn available(&self) -> f64 {
        f64::from_bits(self.count("sliding_window_store_available{}"))
    }
}

impl Recorder for RecordedMetrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
