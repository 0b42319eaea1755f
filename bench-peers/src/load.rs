//! Load from [`oha`](https://github.com/hatoo/oha), and its results.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

/// The longest that a run may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How to load a server.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) url: String,
    pub(crate) requests: u64,
    pub(crate) connections: u32,
    /// Requests a second. If `None`, as fast as responses come.
    pub(crate) rate: Option<u32>,
    /// Further arguments for oha, such as the method and header fields.
    pub(crate) arguments: &'static [&'static str],
}

/// The results. Latencies are in seconds.
pub(crate) struct Seen {
    pub(crate) per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    statuses: BTreeMap<String, u64>,
}

impl Seen {
    /// Returns the share of responses with a status.
    pub(crate) fn share(&self, status: u16) -> f64 {
        let all: u64 = self.statuses.values().sum();
        self.statuses.get(&status.to_string()).copied().unwrap_or(0) as f64 / all as f64
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    summary: Summary,
    latency_percentiles: Percentiles,
    status_code_distribution: BTreeMap<String, u64>,
    error_distribution: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    requests_per_sec: f64,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
}

impl Load {
    /// Runs the load to its end.
    pub(crate) async fn run(&self) -> Result<Seen> {
        let mut oha = Command::new("oha");
        // One thread for the load and one for the server: together the cores of a small machine.
        oha.args(["--no-tui", "--output-format", "json", "--worker-threads", "1"]);
        oha.args(["-n", &self.requests.to_string(), "-c", &self.connections.to_string()]);
        if let Some(rate) = self.rate {
            // Latency counts from when the request was due.
            oha.args(["-q", &rate.to_string(), "--latency-correction"]);
        }
        oha.args(self.arguments);
        if self.url.contains('[') {
            oha.arg("--rand-regex-url").arg(self.url.replace('?', r"\?"));
        } else {
            oha.arg(&self.url);
        }
        oha.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(TIMEOUT, oha.output()).await.context("oha takes too long")?;
        let output = output.context("can't start oha: `cargo install oha --locked`")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "oha failed: {complaint}");
        let report: Report = serde_json::from_slice(&output.stdout)?;
        let errors = report.error_distribution;
        ensure!(errors.is_empty(), "requests failed: {errors:?}");
        Ok(Seen {
            per_second: report.summary.requests_per_sec,
            p50: report.latency_percentiles.p50,
            p99: report.latency_percentiles.p99,
            statuses: report.status_code_distribution,
        })
    }
}
