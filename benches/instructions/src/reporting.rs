//! The recorder and the subscriber of a server in production.

/// Installs a Prometheus recorder, and a subscriber at INFO that writes nowhere.
#[cfg(feature = "reported")]
pub(crate) fn install() {
    metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().expect("a recorder");
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::sink)
        .init();
}

#[cfg(not(feature = "reported"))]
pub(crate) fn install() {}
