//! A recorder of metrics that tests can read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Metadata, Recorder,
    SharedString, Unit,
};

/// Keeps counters, gauges as the bits of their value, and what histograms are given, by name and labels.
#[derive(Clone, Default)]
pub struct RecordedMetrics {
    cells: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    samples: Arc<Mutex<BTreeMap<String, Arc<Samples>>>>,
    descriptions: Arc<Mutex<Descriptions>>,
}

/// The unit and the text of each metric, by name.
type Descriptions = BTreeMap<String, (Option<Unit>, String)>;

#[derive(Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl RecordedMetrics {
    fn name(key: &Key) -> String {
        let labels = key.labels().map(|it| format!("{}={}", it.key(), it.value()));
        let labels: Vec<String> = labels.collect();
        format!("{}{{{}}}", key.name(), labels.join(","))
    }

    fn cell(&self, key: &Key) -> Arc<AtomicU64> {
        self.cells.lock().unwrap().entry(Self::name(key)).or_default().clone()
    }

    fn describe(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        let description = (unit, help.into_owned());
        self.descriptions.lock().unwrap().insert(name.as_str().to_owned(), description);
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

    /// Returns what a histogram was given, nothing if there is none.
    pub fn samples(&self, name: &str) -> Vec<f64> {
        let samples = self.samples.lock().unwrap();
        samples.get(name).map_or_else(Vec::new, |it| it.0.lock().unwrap().clone())
    }

    /// Returns the value of a gauge, 0 if there is none.
    pub fn gauge(&self, name: &str) -> f64 {
        f64::from_bits(self.count(name))
    }

    pub fn descriptions(&self) -> BTreeMap<String, (Option<Unit>, String)> {
        self.descriptions.lock().unwrap().clone()
    }

    /// Drops all metrics, as a recorder does with those that have been idle for a while.
    pub fn drop_idle(&self) {
        self.cells.lock().unwrap().clear();
    }

    pub fn names(&self) -> Vec<String> {
        let samples = self.samples.lock().unwrap();
        self.cells.lock().unwrap().keys().chain(samples.keys()).cloned().collect()
    }

    pub fn available(&self) -> f64 {
        self.gauge("sliding_window_store_available{}")
    }
}

impl Recorder for RecordedMetrics {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(name, unit, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let name = Self::name(key);
        Histogram::from_arc(self.samples.lock().unwrap().entry(name).or_default().clone())
    }
}
