//! A flood of one user, and a crowd of users that are all admitted.

use anyhow::Result;

use crate::cases::Case;
use crate::measure::{Plan, Samples, cpu_ratio};
use crate::table::{Table, number, ratio};
use crate::targets::Figure;

/// A pattern for users that come only once.
pub(crate) const NEW_USERS: &str = "[0-9a-f]{12}";

/// One user sends requests as fast as responses come. From the sixth on they are denied.
pub(crate) async fn flood(plan: Plan, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut cases = vec![Case::Bare429, Case::BareProblem];
    cases.extend(Case::LIMITERS);
    let requests = plan.requests;
    let all = Samples::take("flood", &cases, plan, "bot").await?;
    let mut table = Table::new(
        format!("Flood: one user, {} requests over 64 connections", number(requests as f64)),
        &[
            "",
            "requests/s",
            "p50, ms",
            "p99, ms",
            "server, µs a request",
            "of our 429",
            "Redis, µs a request",
            "Redis calls",
            "status 429, %",
        ],
    );
    for samples in &all {
        table.row([
            samples.case.label().to_owned(),
            number(samples.median(|sample| sample.seen.per_second)),
            number(samples.median(|sample| sample.seen.p50 * 1e3)),
            number(samples.median(|sample| sample.seen.p99 * 1e3)),
            number(samples.median(|sample| sample.server_us)),
            ratio(cpu_ratio(&all, samples.case, Case::BareProblem)),
            optional(samples.median_of(|sample| sample.redis_us)),
            whole(samples.median_of(|sample| sample.redis_calls.map(|calls| calls as f64))),
            number(samples.median(|sample| sample.seen.share(429) * 100.0)),
        ]);
        if samples.case == Case::Redis {
            let most = samples.rounds.iter().filter_map(|sample| sample.redis_calls).max();
            figures.push(Figure::new(
                format!("flood: script calls in {} requests", number(requests as f64)),
                most.map_or(f64::NAN, |calls| calls as f64),
                130.0,
            ));
        }
    }
    Ok(table)
}

/// Every request comes from another user, and all are admitted.
pub(crate) async fn admit(plan: Plan) -> Result<Table> {
    let mut cases = vec![Case::Bare200, Case::Ping];
    cases.extend(Case::LIMITERS);
    // More requests would only mean more users.
    let users = plan.requests.min(100_000);
    let all = Samples::take("admit", &cases, Plan { requests: users, ..plan }, NEW_USERS).await?;
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
            "status 200, %",
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
    Ok(table)
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

fn whole(value: Option<f64>) -> String {
    optional(value).trim_end_matches(".00").to_owned()
}
