//! The recorder and the subscriber of a server in production.

#[cfg(feature = "reported")]
mod recorder {
    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };
    use metrics_util::registry::{GenerationalAtomicStorage, Registry};

    /// The recorder of `metrics-exporter-prometheus` without its exporter.
    ///
    /// It has the same registry and the same counters. The exporter measures the speed of the clock at
    /// its start, for a time that varies more than what is measured here.
    pub(super) struct Registered(pub(super) Registry<Key, GenerationalAtomicStorage>);

    impl Recorder for Registered {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.0.get_or_create_counter(&key.to_retained(), |counter| counter.clone().into())
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            self.0.get_or_create_gauge(&key.to_retained(), |gauge| gauge.clone().into())
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.0.get_or_create_histogram(&key.to_retained(), |buckets| buckets.clone().into())
        }
    }
}

/// Installs a recorder, and a subscriber at INFO that writes nowhere.
#[cfg(feature = "reported")]
pub(crate) fn install() {
    use metrics_util::registry::{GenerationalAtomicStorage, Registry};

    let registry = Registry::new(GenerationalAtomicStorage::atomic());
    let installed = metrics::set_global_recorder(recorder::Registered(registry));
    assert!(installed.is_ok(), "no other recorder is installed");
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::sink)
        .init();
}

#[cfg(not(feature = "reported"))]
pub(crate) fn install() {}
