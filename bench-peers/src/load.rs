//! Load from [`oha`](https://github.com/hatoo/oha), and what it costs.

use std::collections::BTreeMap;
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

/// What is sent to a server, the status of the responses, and where the figures go.
pub(crate) struct Target<'a> {
    pub(crate) server: &'a Server,
    pub(crate) path: &'a str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) status: u16,
    pub(crate) costs: &'a mut Costs,
}

/// What the bursts of a target showed, and what a request of each of them cost. No figures if its server has no Redis.
#[derive(Default)]
pub(crate) struct Costs {
    pub(crate) per_second: Vec<f64>,
    pub(crate) p99_ms: Vec<f64>,
    /// CPU microseconds.
    pub(crate) server_us: Vec<f64>,
    pub(crate) redis_us: Vec<f64>,
    pub(crate) redis_calls: Vec<f64>,
}

/// Sends bursts of requests to all targets in turn, round after round, so that what else the machine does affects all of
/// them.
pub(crate) async fn send_bursts(mut targets: Vec<Target<'_>>, requests: u64) -> Result<()> {
    for target in &targets {
        send(&target.url(), WARM_UP, CONNECTIONS, None, target.arguments).await?;
    }
    for _ in 0..BURSTS {
        // The same order each time would always put a target behind the same other.
        fastrand::shuffle(&mut targets);
        for target in &mut targets {
            target.send(requests).await?;
        }
    }
    Ok(())
}

impl Target<'_> {
    fn url(&self) -> String {
        format!("{}{}", self.server.url, self.path)
    }

    async fn send(&mut self, requests: u64) -> Result<()> {
        let (server, url) = (self.server, self.url());
        let each = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
        let pid = server.pid()?;
        let mut redis_before = None;
        if let Some(redis) = &server.redis {
            redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
            let pid = redis_pid(redis).await?;
            redis_before = Some((redis, pid, cpu(pid)?));
        }
        let before = cpu(pid)?;
        let seen = send(&url, requests, CONNECTIONS, None, self.arguments).await?;
        self.costs.server_us.push(each(cpu(pid)? - before));
        if let Some((redis, pid, before)) = redis_before {
            self.costs.redis_us.push(each(cpu(pid)? - before));
            self.costs.redis_calls.push(redis_calls(redis).await? as f64 / requests as f64);
        }
        self.costs.per_second.push(seen.per_second);
        self.costs.p99_ms.push(seen.p99 * 1e3);
        let share = seen.share(self.status) * 100.0;
        ensure!(share > 99.0, "{url}: {share:.1} % have status {}", self.status);
        Ok(())
    }
}
