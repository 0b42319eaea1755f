//! A flood of one user, and a crowd of users who are all admitted.

use anyhow::Result;

use crate::cases::Case;
use crate::measure::{Samples, cpu_ratio};
use crate::table::{Table, number, ratio};
use crate::targets::Figure;

/// How the HTTP workloads are run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) requests: u64,
    pub(crate) rounds: usize,
    pub(crate) workers: usize,
}

/// One user asks as fast as answers come, and is denied from the sixth request on.
pub(crate) async fn flood(plan: Plan, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut cases = vec![Case::Bare429, Case::BareProblem];
    cases.extend(Case::LIMITERS);
    let Plan { requests, rounds, workers } = plan;
    let all = Samples::take("flood", &cases, rounds, workers, "bot", requests).await?;
    let mut table = Table::new(
        format!("Flood: one user, {} requests over 64 connections", number(requests as f64)),
        &[
            "",
            "requests/s",
            "p50, ms",
            "p99, ms",
            "server, µs a request",
            "of bare 429",
            "Redis, µs a request",
            "Redis calls",
            "answered 429, %",
        ],
    );
    for samples in &all {
        table.row([
            samples.case.label().to_owned(),
            number(samples.median(|sample| sample.seen.per_second)),
            number(samples.median(|sample| sample.seen.p50 * 1e3)),
            number(samples.median(|sample| sample.seen.p99 * 1e3)),
            number(samples.median(|sample| sample.server_us)),
            ratio(cpu_ratio(&all, samples.case, Case::Bare429)),
            optional(samples.median_of(|sample| sample.redis_us)),
            calls(samples.median_of(|sample| sample.redis_calls.map(|calls| calls as f64))),
            number(samples.median(|sample| sample.seen.share(429) * 100.0)),
        ]);
        if samples.case == Case::Redis {
            let most = samples.rounds.iter().filter_map(|sample| sample.redis_calls).max();
            figures.push(Figure::new(
                format!("flood: script calls in {} requests", number(requests as f64)),
                most.unwrap_or(0) as f64,
                130.0,
            ));
        }
    }
    if let Some(measured) = cpu_ratio(&all, Case::Redis, Case::Bare429) {
        figures.push(Figure::new(
            "flood: server CPU a request, RedisStore / bare 429",
            measured,
            1.08,
        ));
    }
    Ok(table)
}

/// Every request is of another user, and all are admitted.
pub(crate) async fn admit(plan: Plan, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut cases = vec![Case::Bare200, Case::Ping];
    cases.extend(Case::LIMITERS);
    // As many users as a flash sale has; more requests would only be more users.
    let Plan { requests, rounds, workers } = plan;
    let users = requests.min(100_000);
    let all = Samples::take("admit", &cases, rounds, workers, "[0-9a-f]{12}", users).await?;
    let mut table = Table::new(
        format!("Admit: {} users, one request each, over 64 connections", number(users as f64)),
        &[
            "",
            "requests/s",
            "p50, ms",
            "p99, ms",
            "server, µs a request",
            "of one PING",
            "Redis, µs a request",
            "Redis calls a request",
            "server, bytes a key",
            "Redis, bytes a key",
            "answered 200, %",
        ],
    );
    for samples in &all {
        let is_limiter = Case::LIMITERS.contains(&samples.case);
        let a_user =
            |growth: Option<f64>| growth.filter(|_| is_limiter).map(|it| it / users as f64);
        table.row([
            samples.case.label().to_owned(),
            number(samples.median(|sample| sample.seen.per_second)),
            number(samples.median(|sample| sample.seen.p50 * 1e3)),
            number(samples.median(|sample| sample.seen.p99 * 1e3)),
            number(samples.median(|sample| sample.server_us)),
            ratio(cpu_ratio(&all, samples.case, Case::Ping)),
            optional(samples.median_of(|sample| sample.redis_us)),
            optional(
                samples.median_of(|sample| {
                    sample.redis_calls.map(|calls| calls as f64 / users as f64)
                }),
            ),
            optional(a_user(Some(samples.median(|sample| sample.server_growth)))),
            optional(a_user(samples.median_of(|sample| sample.redis_growth))),
            number(samples.median(|sample| sample.seen.share(200) * 100.0)),
        ]);
    }
    if let Some(measured) = cpu_ratio(&all, Case::Redis, Case::Ping) {
        figures.push(Figure::new(
            "admit: server CPU a request, RedisStore / one PING",
            measured,
            1.10,
        ));
    }
    Ok(table)
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

fn calls(value: Option<f64>) -> String {
    optional(value).trim_end_matches(".00").to_owned()
}
