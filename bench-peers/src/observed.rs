//! A server in production: a recorder of metrics, a subscriber of events, and the keys denied most.

use anyhow::{Context, Result};

/// Installs the recorder of metrics-exporter-prometheus, and a subscriber at INFO that writes nowhere.
pub(crate) fn install() -> Result<()> {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::set_global_recorder(recorder).ok().context("another recorder is installed")?;
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::sink)
        .init();
    Ok(())
}
