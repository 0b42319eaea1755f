//! What a decision costs Redis if no process has a second request to share a call with.

use std::io::stdin;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tower_sliding_window::Quota;

use crate::cases::{connect, patient};
use crate::process::{again, cpu};
use crate::redis_server::RedisServer;
use crate::setup::{LIMIT, WINDOW};
use crate::table::Table;
use crate::targets::{Goal, goals};
use crate::textbook::Textbook;

const PROCESSES: usize = 16;
/// How many users each process has in a round.
const USERS: usize = 500;
const WARM_UP: usize = 50;

/// What the processes check with.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Limiter {
    Ours,
    Textbook,
}

/// Measures both limiters in turn, round after round.
pub(crate) async fn run(rounds: usize) -> Result<Table> {
    let mut fleets = [Fleet::start(Limiter::Ours).await?, Fleet::start(Limiter::Textbook).await?];
    let mut costs = [const { [const { Vec::new() }; 2] }; 2];
    for round in 0..=rounds {
        eprintln!("fleet: round {round} of {rounds}");
        for (fleet, [first, later]) in fleets.iter_mut().zip(&mut costs) {
            let users = if round > 0 { USERS } else { WARM_UP };
            let seen = [
                fleet.check(round, users, 1).await?,
                fleet.check(round, users, LIMIT as usize - 1).await?,
            ];
            // The first round warms up.
            if round > 0 {
                first.push(seen[0]);
                later.push(seen[1]);
            }
        }
    }
    let [ours, textbook] = &costs;
    let title = "A fleet: sixteen processes with one request under way each, 5/60s on one Redis";
    Ok(goals(
        title,
        &[
            Goal::ratio("new users: Redis CPU / textbook script", &ours[0], &textbook[0], 1.05),
            Goal::ratio(
                "their 2nd to 5th request: Redis CPU / textbook script",
                &ours[1],
                &textbook[1],
                1.1,
            ),
        ],
    ))
}

/// The processes of one limiter, and their Redis server. All end when this value is dropped.
struct Fleet {
    processes: Vec<(Child, Lines<BufReader<ChildStdout>>)>,
    redis: RedisServer,
}

impl Fleet {
    async fn start(limiter: Limiter) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let name = limiter.to_possible_value().context("a hidden limiter")?;
        let arguments =
            ["probe-fleet", name.get_name(), "--redis", &redis.url()].map(str::to_owned);
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            let mut process = again(&arguments)?;
            let output = process.stdout.take().context("no output")?;
            processes.push((process, BufReader::new(output).lines()));
        }
        Ok(Self { processes, redis })
    }

    /// Has each process check its users so often, all processes at once. Returns the CPU time of Redis for
    /// a decision, in microseconds.
    async fn check(&mut self, round: usize, users: usize, passes: usize) -> Result<f64> {
        let pid = self.redis.pid()?;
        let before = cpu(pid)?;
        for (index, (process, _)) in self.processes.iter_mut().enumerate() {
            let input = process.stdin.as_mut().context("no input")?;
            input.write_all(format!("r{round}p{index:02} {users} {passes}\n").as_bytes()).await?;
        }
        for (_, output) in &mut self.processes {
            let admitted = output.next_line().await?.context("a process has ended")?;
            ensure!(admitted == (users * passes).to_string(), "{admitted} admitted");
        }
        let decisions = (PROCESSES * users * passes) as f64;
        Ok((cpu(pid)? - before).as_secs_f64() * 1e6 / decisions)
    }
}

/// One process of a fleet. Each line of its input is what its users are called, how many they are, and how
/// often each is checked. Prints how many checks were admitted. Ends with the input.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn work(limiter: Limiter, redis: &str) -> Result<()> {
    let quota = Quota::new(LIMIT, WINDOW);
    let (ours, textbook) = match limiter {
        Limiter::Ours => {
            let store = patient().connect(redis).await?;
            (Some(tower_sliding_window::Limiter::new(quota, store)), None)
        }
        Limiter::Textbook => (None, Some(Textbook::new(connect(redis).await?, WINDOW, false))),
    };
    // Nothing else is to run while it waits for a line.
    for line in stdin().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut word = || words.next().context("a word is missing");
        let (name, users, passes) = (word()?, word()?.parse()?, word()?.parse()?);
        let mut admitted = 0;
        for _ in 0_usize..passes {
            for user in 0_usize..users {
                let user = format!("{name}-{user:04}");
                admitted += usize::from(match (&ours, &textbook) {
                    (Some(ours), _) => ours.check(user).await?.is_admitted(),
                    (_, Some(textbook)) => textbook.admit(&user, LIMIT).await?,
                    _ => false,
                });
            }
        }
        println!("{admitted}");
    }
    Ok(())
}
