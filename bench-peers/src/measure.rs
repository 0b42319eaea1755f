//! [`Sample`]: what one case under one load costs.

use std::time::Duration;

use anyhow::Result;

use crate::cases::Case;
use crate::load::{Load, Seen};
use crate::process::{cpu, resident_bytes};
use crate::server::Server;
use crate::table::median;

/// How many connections the load has.
pub(crate) const CONNECTIONS: u32 = 64;

/// How the HTTP workloads are run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) requests: u64,
    pub(crate) rounds: usize,
    pub(crate) workers: usize,
}

/// One round of one case.
pub(crate) struct Sample {
    pub(crate) seen: Seen,
    /// CPU microseconds a request, of the server and of Redis.
    pub(crate) server_us: f64,
    pub(crate) redis_us: Option<f64>,
    /// How many commands Redis received.
    pub(crate) redis_calls: Option<u64>,
    /// How much the server and Redis have grown, in bytes.
    pub(crate) server_growth: f64,
    pub(crate) redis_growth: Option<f64>,
}

/// Starts a case, warms it up and sends requests of some users.
pub(crate) async fn sample(
    case: Case,
    workers: usize,
    users: &str,
    requests: u64,
) -> Result<Sample> {
    let server = Server::start(case, workers).await?;
    let load = |users: &str, requests| Load {
        url: server.url(users),
        requests,
        connections: CONNECTIONS,
        rate: None,
        arguments: &[],
    };
    load("warm[0-9]{4}", 5_000).run().await?;

    let (pid, redis) = (server.pid()?, server.redis.as_ref());
    let redis_pid = redis.map(|redis| redis.pid()).transpose()?;
    if let Some(redis) = redis {
        redis.reset_stats().await?;
    }
    let used = || async {
        match redis {
            Some(redis) => redis.used_memory().await.map(Some),
            None => Ok(None),
        }
    };
    let (redis_before, resident_before) = (used().await?, resident_bytes(pid)?);
    let redis_cpu_before = redis_pid.map(cpu).transpose()?;
    let cpu_before = cpu(pid)?;

    let seen = load(users, requests).run().await?;

    let per_request = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
    let server_us = per_request(cpu(pid)? - cpu_before);
    let redis_us = match redis_pid.zip(redis_cpu_before) {
        Some((pid, before)) => Some(per_request(cpu(pid)? - before)),
        None => None,
    };
    let redis_calls = match redis {
        Some(redis) => Some(redis.commands().await?),
        None => None,
    };
    let growth = |before: u64, after: u64| after as f64 - before as f64;
    Ok(Sample {
        seen,
        server_us,
        redis_us,
        redis_calls,
        server_growth: growth(resident_before, resident_bytes(pid)?),
        redis_growth: redis_before.zip(used().await?).map(|(before, after)| growth(before, after)),
    })
}

/// The samples of one case, over the rounds.
pub(crate) struct Samples {
    pub(crate) case: Case,
    pub(crate) rounds: Vec<Sample>,
}

impl Samples {
    /// Measures all cases in turn, round after round, so that a slow minute affects all of them.
    pub(crate) async fn take(
        what: &str,
        cases: &[Case],
        plan: Plan,
        users: &str,
    ) -> Result<Vec<Self>> {
        let Plan { requests, rounds, workers } = plan;
        let mut all: Vec<Self> =
            cases.iter().map(|case| Self { case: *case, rounds: Vec::new() }).collect();
        for round in 1..=rounds {
            for samples in &mut all {
                let sample = sample(samples.case, workers, users, requests).await?;
                eprintln!(
                    "{what}: round {round} of {rounds}: {}: {:.0} requests/s, {:.1} µs",
                    samples.case.label(),
                    sample.seen.per_second,
                    sample.server_us
                );
                samples.rounds.push(sample);
            }
        }
        Ok(all)
    }

    pub(crate) fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    /// Returns the median of a value that only cases with a Redis server have.
    pub(crate) fn median_of(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| median(values))
    }
}

/// Returns the ratio of the CPU time of two cases: the median of the ratios within each round.
pub(crate) fn cpu_ratio(all: &[Samples], case: Case, base: Case) -> Option<f64> {
    let find = |case| all.iter().find(|samples| samples.case == case);
    let pairs = find(case)?.rounds.iter().zip(&find(base)?.rounds);
    Some(median(pairs.map(|(sample, base)| sample.server_us / base.server_us)))
}
