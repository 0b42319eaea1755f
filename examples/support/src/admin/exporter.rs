//! [`Exporter`]: the metrics of a server, in the text format of Prometheus.

use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::interval;

/// The buckets of the durations, in seconds: from a call to a Redis nearby to the longest wait.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
    30.0,
];
/// The buckets of the requests in a call to Redis. There are at most 32.
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Keeps the metrics of this process, for `GET /metrics`.
pub(super) struct Exporter(PrometheusHandle);

impl Exporter {
    /// Installs the recorder of this process.
    pub(super) fn install() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_batch_size".to_owned()), BATCH)?;
        Ok(Self(recorder.install_recorder()?))
    }

    /// Returns the route of the metrics.
    pub(super) fn routes(self) -> Router {
        let handle = self.0.clone();
        // What was measured is put into its buckets now and then, also if no one reads it.
        tokio::spawn(async move {
            let mut upkeep = interval(Duration::from_secs(5));
            loop {
                upkeep.tick().await;
                handle.run_upkeep();
            }
        });
        let text = "text/plain; version=0.0.4; charset=utf-8";
        let metrics = async move || ([(CONTENT_TYPE, text)], self.0.render());
        Router::new().route("/metrics", get(metrics))
    }
}
