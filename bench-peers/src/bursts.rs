//! What a request costs the server and Redis, measured with care: all cases at once, each with short
//! bursts of load in turn, in processes that are started several times.

use std::path::Path;

use anyhow::{Context, Result};

use crate::cases::Case;
use crate::load::Load;
use crate::measure::{CONNECTIONS, Plan};
use crate::process::cpu;
use crate::server::Server;
use crate::table::{Table, median, number, ratio};
use crate::targets::Figure;
use crate::workloads::NEW_USERS;

/// How often the servers are started. Two processes of the same program differ by a few hundredths,
/// depending on where their memory is.
const STARTS: usize = 12;

/// The number of rounds after each start. In each, every case gets one burst. Other work of the host makes
/// single bursts up to a tenth slower, so a median of few bursts is not steady.
const BURSTS: usize = 9;

/// A burst has this share of the requests of a whole case. In a shorter one, much of the time goes to
/// the first requests of its connections.
const SHARE: u64 = 10;

/// CPU microseconds a request in each round.
struct Costs {
    case: Case,
    server: Vec<f64>,
    redis: Vec<f64>,
}

/// Measures the flood and the admissions.
pub(crate) async fn run(
    plan: Plan,
    observed: Option<&Path>,
    figures: &mut Vec<Figure>,
) -> Result<Vec<Table>> {
    let mut cases = vec![Case::BareProblem, Case::Bare429, Case::Least, Case::Memory, Case::Redis];
    if observed.is_some() {
        cases.extend([Case::MemoryObserved, Case::RedisObserved]);
    }
    let flood = Burst { name: "flood", users: "bot", cases: &cases, observed };
    let flood = flood.measure(plan).await?;
    for case in [Case::Memory, Case::Redis] {
        figures.push(figure(&flood, "flood", case, Case::BareProblem, SERVER, 1.03)?);
    }
    if observed.is_some() {
        for (case, plain) in
            [(Case::MemoryObserved, Case::Memory), (Case::RedisObserved, Case::Redis)]
        {
            figures.push(figure(&flood, "flood", case, plain, SERVER, 1.03)?);
        }
    }
    let flood = table("flood", &flood, Case::BareProblem, None)?;

    let cases =
        [Case::Ping, Case::Bare200, Case::Memory, Case::Redis, Case::RedisUncached, Case::Textbook];
    let admit = Burst { name: "admit", users: NEW_USERS, cases: &cases, observed: None };
    let admit = admit.measure(plan).await?;
    figures.push(figure(&admit, "admit", Case::Redis, Case::Ping, SERVER, 1.00)?);
    figures.push(figure(&admit, "admit", Case::Redis, Case::Textbook, REDIS, 0.70)?);
    let admit = table("admit", &admit, Case::Ping, Some(Case::Textbook))?;
    Ok(vec![flood, admit])
}

/// Whose CPU time: its name, and the values of the rounds.
type Whose = (&'static str, fn(&Costs) -> &[f64]);
const SERVER: Whose = ("server", |costs| &costs.server);
const REDIS: Whose = ("Redis", |costs| &costs.redis);

/// A load for some cases.
struct Burst<'a> {
    name: &'a str,
    users: &'a str,
    cases: &'a [Case],
    observed: Option<&'a Path>,
}

impl Burst<'_> {
    async fn measure(&self, plan: Plan) -> Result<Vec<Costs>> {
        let new_costs = |&case| Costs { case, server: Vec::new(), redis: Vec::new() };
        let mut all: Vec<Costs> = self.cases.iter().map(new_costs).collect();
        let starts = STARTS * plan.rounds;
        for start in 1..=starts {
            eprintln!("bursts: {}: start {start} of {starts}", self.name);
            self.measure_once(plan, &mut all).await?;
        }
        Ok(all)
    }

    /// Starts the servers, and adds what their bursts cost.
    async fn measure_once(&self, plan: Plan, all: &mut [Costs]) -> Result<()> {
        let mut servers: Vec<(&mut Costs, Server)> = Vec::new();
        for costs in all {
            let case = costs.case;
            let server = match self.observed.filter(|_| case.is_observed()) {
                Some(program) => Server::start_from(program, case, plan.workers).await?,
                None => Server::start(case, plan.workers).await?,
            };
            servers.push((costs, server));
        }
        let requests = (plan.requests / SHARE).max(1);
        for round in 0..=BURSTS {
            // The same order each time would always put a case behind the same other.
            fastrand::shuffle(&mut servers);
            for (costs, server) in &mut servers {
                let redis = server.redis.as_ref();
                let redis_pid = redis.map(|redis| redis.pid()).transpose()?;
                let (server_before, redis_before) =
                    (cpu(server.pid()?)?, redis_pid.map(cpu).transpose()?);
                let url = server.url(self.users);
                let connections = CONNECTIONS;
                Load { url, requests, connections, rate: None, arguments: &[] }.run().await?;
                let used = (cpu(server.pid()?)? - server_before).as_secs_f64();
                let redis_used = match redis_pid.zip(redis_before) {
                    Some((pid, before)) => (cpu(pid)? - before).as_secs_f64(),
                    None => f64::NAN,
                };
                // The first round warms up.
                if round > 0 {
                    costs.server.push(used * 1e6 / requests as f64);
                    costs.redis.push(redis_used * 1e6 / requests as f64);
                }
                if self.users == NEW_USERS
                    && let Some(redis) = redis
                {
                    redis.flush().await?;
                }
            }
        }
        Ok(())
    }
}

fn find(all: &[Costs], case: Case) -> Result<&Costs> {
    all.iter().find(|costs| costs.case == case).context("a case that was not measured")
}

/// Returns the median of the ratios of the rounds.
fn of_base(of: &[f64], base: &[f64]) -> f64 {
    median(of.iter().zip(base).map(|(of, base)| of / base))
}

/// Returns the standard error of a ratio, from the medians of the starts.
fn error(of: &[f64], base: &[f64]) -> f64 {
    let starts = of.chunks(BURSTS).zip(base.chunks(BURSTS));
    let medians: Vec<f64> = starts.map(|(of, base)| of_base(of, base)).collect();
    let count = medians.len() as f64;
    let mean = medians.iter().sum::<f64>() / count;
    let squares: f64 = medians.iter().map(|median| (median - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

fn figure(
    all: &[Costs],
    name: &str,
    case: Case,
    base: Case,
    (whose, values): Whose,
    at_most: f64,
) -> Result<Figure> {
    let measured = of_base(values(find(all, case)?), values(find(all, base)?));
    let name = format!("{whose} CPU a request, {name}: {} / {}", case.label(), base.label());
    Ok(Figure::new(name, measured, at_most))
}

fn table(name: &str, all: &[Costs], base: Case, redis_base: Option<Case>) -> Result<Table> {
    let of = |base: Case| format!("of {}", base.label());
    let mut header = vec![String::new(), "server, µs a request".to_owned(), of(base)];
    header.extend(["±", "above it, µs"].map(str::to_owned));
    if let Some(redis_base) = redis_base {
        header.extend(["Redis, µs a request".to_owned(), of(redis_base)]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(format!("CPU a request, {name}: bursts in turn"), &header);
    for costs in all {
        let base = &find(all, base)?.server;
        let median_of = |values: &[f64]| median(values.iter().copied());
        let mut row = vec![
            costs.case.label().to_owned(),
            number(median_of(&costs.server)),
            ratio(Some(of_base(&costs.server, base))),
            format!("{:.3}", error(&costs.server, base)),
            format!("{:.2}", median(costs.server.iter().zip(base).map(|(of, base)| of - base))),
        ];
        if let Some(redis_base) = redis_base {
            let redis_ratio = of_base(&costs.redis, &find(all, redis_base)?.redis);
            row.push(number(median_of(&costs.redis)));
            row.push(ratio(Some(redis_ratio).filter(|ratio| ratio.is_finite())));
        }
        table.row(row);
    }
    Ok(table)
}
