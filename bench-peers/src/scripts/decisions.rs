//! What a decision costs Redis, in time and in memory, by our script and by the textbook's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use tower_sliding_window::{Limiter, Quota};

use super::share;
use crate::cases::{connect, patient};
use crate::programs::Program;
use crate::redis_server::RedisServer;
use crate::setup::{LIMIT, WINDOW};
use crate::table::{Table, median, number, ratio};
use crate::textbook::Textbook;

const KEYS: usize = 10_000;
/// How often each key is checked again after its log is full.
const DENIED_PASSES: usize = 2;
/// The textbook script, and ours from so many tasks.
const CANDIDATES: [Candidate; 3] =
    [Candidate::Textbook, Candidate::Ours { tasks: 1 }, Candidate::Ours { tasks: 64 }];

#[derive(Clone, Copy)]
enum Candidate {
    Textbook,
    Ours { tasks: usize },
}

/// What one run of a candidate cost on a new server.
struct Cost {
    admit_us: f64,
    deny_us: f64,
    bytes_per_key: f64,
}

pub(crate) fn table() -> Table {
    Table::new(
        "Scripts: µs of Redis a decision, 5/60s, without HTTP",
        &["", "textbook", "ours, 1 task", "ratio", "ours, 64 tasks", "ratio"],
    )
}

/// Measures all candidates on servers of a program, turn by turn, and adds its rows.
pub(crate) async fn run(program: &Program, rounds: usize, table: &mut Table) -> Result<()> {
    let mut costs = [const { Vec::new() }; CANDIDATES.len()];
    for _ in 0..rounds {
        for (candidate, costs) in CANDIDATES.into_iter().zip(&mut costs) {
            costs.push(measure(program, candidate).await?);
        }
    }
    let mut row = |name: &str, of: fn(&Cost) -> f64| {
        let seen = costs.each_ref().map(|costs| median(costs.iter().map(of)));
        let [textbook, alone, together] = seen;
        table.row([
            format!("{}: {name}", program.name),
            number(textbook),
            number(alone),
            ratio(Some(alone / textbook)),
            number(together),
            ratio(Some(together / textbook)),
        ]);
    };
    row("admit", |cost| cost.admit_us);
    row("deny", |cost| cost.deny_us);
    row("bytes a key, 5 entries", |cost| cost.bytes_per_key);
    Ok(())
}

async fn measure(program: &Program, candidate: Candidate) -> Result<Cost> {
    let server = RedisServer::start_with(&program.path, &[]).await?;
    let checks = Checks::new(candidate, &server).await?;
    // Loads the script.
    checks.pass("warm", 1).await?;
    let empty = server.used_memory().await?;
    let mut admit = Vec::new();
    for _ in 0..LIMIT {
        admit.push(checks.timed(&server, KEYS).await?);
    }
    let full = server.used_memory().await?;
    let mut deny = Vec::new();
    for _ in 0..DENIED_PASSES {
        deny.push(checks.timed(&server, 0).await?);
    }
    let bytes_per_key = full.saturating_sub(empty) as f64 / KEYS as f64;
    Ok(Cost { admit_us: median(admit), deny_us: median(deny), bytes_per_key })
}

/// A limiter without a cache of denials.
enum Checks {
    Textbook(Box<Textbook>),
    Ours { limiter: Limiter, tasks: usize },
}

impl Checks {
    async fn new(candidate: Candidate, server: &RedisServer) -> Result<Self> {
        Ok(match candidate {
            Candidate::Textbook => {
                let connection = connect(&server.url()).await?;
                Self::Textbook(Box::new(Textbook::new(connection, WINDOW, false)))
            }
            Candidate::Ours { tasks } => {
                let store = patient().deny_cache(false).connect(server.url()).await?;
                Self::Ours { limiter: Limiter::new(Quota::new(LIMIT, WINDOW), store), tasks }
            }
        })
    }

    /// Checks each key once. Returns the time of the scripts for a decision, in microseconds.
    async fn timed(&self, server: &RedisServer, admitted: usize) -> Result<f64> {
        server.reset_stats().await?;
        let seen = self.pass("user", KEYS).await?;
        ensure!(seen == admitted, "{seen} of {admitted} admitted");
        let stats = server.stats().await?.get("evalsha").copied().unwrap_or_default();
        Ok(stats.usec as f64 / KEYS as f64)
    }

    /// Checks so many keys once each, and returns how many were admitted.
    async fn pass(&self, name: &'static str, keys: usize) -> Result<usize> {
        let admitted = Arc::new(AtomicUsize::new(0));
        match self {
            Self::Textbook(textbook) => {
                for key in 0..keys {
                    let is_admitted = textbook.admit(&format!("{name}-{key:07}"), LIMIT).await?;
                    admitted.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
                }
            }
            Self::Ours { limiter, tasks } => {
                let (limiter, counter) = (limiter.clone(), admitted.clone());
                share(0..keys, *tasks, move |key| {
                    let (limiter, counter) = (limiter.clone(), counter.clone());
                    async move {
                        let decision = limiter.check(format!("{name}-{key:07}")).await?;
                        counter.fetch_add(decision.is_admitted().into(), Ordering::Relaxed);
                        Ok(())
                    }
                })
                .await?;
            }
        }
        Ok(admitted.load(Ordering::Relaxed))
    }
}
