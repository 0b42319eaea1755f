//! Load from [`oha`](https://github.com/hatoo/oha), and what it costs.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::programs::{Server, cpu, redis_calls, redis_pid};

/// A pattern for users that come only once.
pub(crate) const NEW_USERS: &str = "[0-9a-f]{12}";
const CONNECTIONS: u32 = 64;
/// How many bursts each target gets after each start of the servers, in turn with the others.
const BURSTS: usize = 3;
const WARM_UP: u64 = 2_000;
/// The longest that a load may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Latencies are in seconds.
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

/// Sends requests as fast as responses come, or at a rate. The URL can be a pattern, and the arguments are oha's.
pub(crate) async fn send(
    url: &str,
    requests: u64,
    connections: u32,
    rate: Option<u32>,
    arguments: &[&str],
) -> Result<Seen> {
    let mut oha = Command::new("oha");
    // One thread for the load and one for the server: together the cores of a small machine.
    oha.args(["--no-tui", "--output-format", "json", "--worker-threads", "1"]);
    oha.args(["-n", &requests.to_string(), "-c", &connections.to_string()]).args(arguments);
    if let Some(rate) = rate {
        // Latency counts from when the request was due.
        oha.args(["-q", &rate.to_string(), "--latency-correction"]);
    }
    if url.contains('[') {
        oha.arg("--rand-regex-url").arg(url.replace('?', r"\?"));
    } else {
        oha.arg(url);
    }
    oha.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, oha.output()).await.context("oha takes too long")??;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "oha failed: {complaint}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let errors = &report["errorDistribution"];
    ensure!(*errors == json!({}), "requests failed: {errors}");
    let figure = |at: &'static str| report.pointer(at).and_then(Value::as_f64).context(at);
    Ok(Seen {
        per_second: figure("/summary/requestsPerSec")?,
        p50: figure("/latencyPercentiles/p50")?,
        p99: figure("/latencyPercentiles/p99")?,
        statuses: serde_json::from_value(report["statusCodeDistribution"].clone())?,
    })
}

/// What is sent to a server, and the status of the responses.
pub(crate) struct Target<'a, K> {
    pub(crate) key: K,
    pub(crate) server: &'a Server,
    pub(crate) url: String,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) status: u16,
}

/// What a burst showed, and what a request of it cost.
pub(crate) struct Burst {
    pub(crate) seen: Seen,
    /// CPU microseconds.
    pub(crate) server_us: f64,
    pub(crate) redis_us: Option<f64>,
    pub(crate) redis_calls: Option<f64>,
}

/// The bursts of each target, in the order of the rounds.
pub(crate) struct Bursts<K>(HashMap<K, Vec<Burst>>);

impl<K: Copy + Debug + Eq + Hash> Bursts<K> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Sends bursts of requests to all targets in turn, round after round, so that what else the machine does
    /// affects all of them.
    pub(crate) async fn send(
        &mut self,
        mut targets: Vec<Target<'_, K>>,
        requests: u64,
    ) -> Result<()> {
        for burst in 0..=BURSTS {
            // The same order each time would always put a target behind the same other.
            fastrand::shuffle(&mut targets);
            for target in &targets {
                // The first burst warms up.
                let requests = if burst == 0 { WARM_UP } else { requests };
                let measured = target.send(requests).await?;
                if burst > 0 {
                    self.0.entry(target.key).or_default().push(measured);
                }
            }
        }
        Ok(())
    }

    /// Returns a figure of each burst of a target, or nothing if there is no such target or no such figure.
    pub(crate) fn of(&self, key: K, figure: impl Fn(&Burst) -> Option<f64>) -> Vec<f64> {
        self.0.get(&key).into_iter().flatten().filter_map(figure).collect()
    }

    pub(crate) fn server_us(&self, key: K) -> Vec<f64> {
        self.of(key, |burst| Some(burst.server_us))
    }

    pub(crate) fn redis_us(&self, key: K) -> Vec<f64> {
        self.of(key, |burst| burst.redis_us)
    }

    pub(crate) fn redis_calls(&self, key: K) -> Vec<f64> {
        self.of(key, |burst| burst.redis_calls)
    }
}

impl<K: Debug> Target<'_, K> {
    async fn send(&self, requests: u64) -> Result<Burst> {
        let (pid, redis) = (self.server.pid()?, self.server.redis.as_ref());
        let redis_pid = match redis {
            Some(redis) => {
                redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
                Some(redis_pid(redis).await?)
            }
            None => None,
        };
        let (before, redis_before) = (cpu(pid)?, redis_pid.map(cpu).transpose()?);
        let seen = send(&self.url, requests, CONNECTIONS, None, self.arguments).await?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
        let server_us = each(cpu(pid)? - before);
        let redis_after = redis_pid.map(cpu).transpose()?;
        let redis_us = redis_after.zip(redis_before).map(|(after, before)| each(after - before));
        let redis_calls = match redis {
            Some(redis) => Some(redis_calls(redis).await? as f64 / requests as f64),
            None => None,
        };
        let share = seen.share(self.status) * 100.0;
        ensure!(share > 99.0, "{:?}: {share:.1} % have status {}", self.key, self.status);
        Ok(Burst { seen, server_us, redis_us, redis_calls })
    }
}
