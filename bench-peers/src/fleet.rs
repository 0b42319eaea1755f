//! What a decision costs Redis: if no process has a second request to share a call with, if one has many, and on a
//! Cluster.

use std::io::stdin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use test_support::{Cluster, Redis};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinSet;
use tower_sliding_window::store::RedisServers;
use tower_sliding_window::{Limiter, Policy, Quota, RedisStore};

use crate::peers::{LIMIT, MINUTE, Textbook, patient};
use crate::programs::{cpu, redis_pid, start};
use crate::table::Table;

const PROCESSES: usize = 16;
/// How many users each process has in a round.
const USERS: usize = 500;
/// How many checks one process has under way, and how many it makes with each.
const TASKS: usize = 64;
const EACH: usize = 500;
/// How many requests a user of a budget makes, and of the plain quota beside it.
const OF_A_USER: usize = 10;
const MOST_TOKENS: u32 = 100_000;

/// What checks.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Checks {
    Ours,
    Textbook,
}

/// A connection of it.
#[derive(Clone)]
enum Connected {
    Ours(Limiter),
    Budget(Limiter),
    Textbook(Textbook),
}

impl Checks {
    async fn connect(self, url: &str) -> Result<Connected> {
        Ok(match self {
            Self::Ours => Connected::ours(RedisServers::try_from(url)?).await?,
            Self::Textbook => Connected::Textbook(Textbook::new(url, MINUTE).await?),
        })
    }
}

impl Connected {
    async fn ours(servers: RedisServers) -> Result<Self> {
        Ok(Self::Ours(Limiter::new(Quota::new(LIMIT, MINUTE), patient().connect(servers).await?)))
    }

    /// Has room for all requests of a user, as what the same number of requests fills.
    fn with_budget(store: &RedisStore) -> [Self; 2] {
        let quota = |limit| Quota::new(limit, MINUTE);
        let (requests, tokens) = (OF_A_USER as u32, OF_A_USER as u32 * MOST_TOKENS);
        let budget = Policy::new("tokens").quota(quota(tokens)).budget();
        let limiters = [Policy::new("plain").quota(quota(requests)), budget];
        let [plain, budget] = limiters.map(|policy| Limiter::new(policy, store.clone()));
        [Self::Ours(plain), Self::Budget(budget)]
    }

    async fn admit(&self, user: &str) -> Result<bool> {
        Ok(match self {
            Self::Ours(limiter) => limiter.check(user).await?.is_admitted(),
            Self::Budget(limiter) => {
                let cost = fastrand::u32(1..=MOST_TOKENS);
                limiter.check_cost(user, cost).await?.is_admitted()
            }
            Self::Textbook(textbook) => textbook.admit(user, LIMIT).await?,
        })
    }
}

/// Measures all in turn, round after round.
pub(crate) async fn run(rounds: usize) -> Result<Table> {
    let mut fleets = [Fleet::start(Checks::Ours).await?, Fleet::start(Checks::Textbook).await?];
    let (redis, textbook_redis, cluster) =
        (Redis::start().await, Redis::start().await, Cluster::start().await);
    let ours = Checks::Ours.connect(&redis.url()).await?;
    let textbook = Checks::Textbook.connect(&textbook_redis.url()).await?;
    let on_cluster = Connected::ours(RedisServers::cluster(cluster.urls())?).await?;
    let [plain, budget] = Connected::with_budget(&patient().connect(redis.url()).await?);

    let mut costs = [const { Vec::new() }; 9];
    for round in 0..=rounds {
        eprintln!("fleet: round {round} of {rounds}");
        let mut seen = Vec::new();
        for fleet in &mut fleets {
            seen.push(fleet.check(round, 1).await?);
            seen.push(fleet.check(round, LIMIT as usize - 1).await?);
        }
        let redis = std::slice::from_ref(&redis);
        seen.push(check_at_once(&ours, redis, round, 1).await?);
        seen.push(check_at_once(&textbook, std::slice::from_ref(&textbook_redis), round, 1).await?);
        seen.push(check_at_once(&on_cluster, &cluster.nodes, round, 1).await?);
        seen.push(check_at_once(&plain, redis, round, OF_A_USER).await?);
        seen.push(check_at_once(&budget, redis, round, OF_A_USER).await?);
        // The first round warms up.
        if round > 0 {
            costs.iter_mut().zip(seen).for_each(|(costs, seen)| costs.push(seen));
        }
    }
    let [new, later, new_textbook, later_textbook, one, one_textbook, busiest, plain, budget] =
        costs;
    let mut table = Table::of_goals("A fleet, one process, and a Cluster");
    table.goal("new users: Redis CPU / textbook script", new, new_textbook, 1.05);
    let name = "their 2nd to 5th request: Redis CPU / textbook script";
    table.goal(name, later, later_textbook, 1.1);
    let name = "one process with 64 under way, new users: Redis CPU / textbook script";
    table.goal(name, one.clone(), one_textbook, 0.65);
    // Three servers should do 1.7 times the work of one.
    let name = "the same on a Cluster of three: CPU of the busiest / one server";
    table.goal(name, busiest, one, 0.59);
    let name = "one process with 64 under way, ten requests a user: budget of tokens / plain quota";
    table.goal(name, budget, plain, 1.3);
    Ok(table)
}

/// Makes the checks of new users from many tasks, so many of each. Returns the CPU time of the busiest server for a
/// decision, in microseconds.
async fn check_at_once(
    checks: &Connected,
    servers: &[Redis],
    round: usize,
    of_a_user: usize,
) -> Result<f64> {
    let mut before = Vec::new();
    for server in servers {
        let pid = redis_pid(server).await?;
        before.push((pid, cpu(pid)?));
    }
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let checks = checks.clone();
        tasks.spawn(async move {
            for check in 0..EACH {
                let user = format!("r{round}t{task:02}-{:04}", check / of_a_user);
                ensure!(checks.admit(&user).await?, "a denial");
            }
            Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<()>>()?;
    let mut busiest = Duration::ZERO;
    for (pid, before) in before {
        busiest = busiest.max(cpu(pid)? - before);
    }
    Ok(busiest.as_secs_f64() * 1e6 / (TASKS * EACH) as f64)
}

/// Processes with one request under way each, and their Redis server. All end when this value is dropped.
struct Fleet {
    processes: Vec<(Child, Lines<BufReader<ChildStdout>>)>,
    redis: Redis,
}

impl Fleet {
    async fn start(checks: Checks) -> Result<Self> {
        let redis = Redis::start().await;
        let name = checks.to_possible_value().context("it is not hidden")?;
        let url = redis.url();
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            let arguments = ["check", name.get_name(), "--redis", &url];
            let mut process = start(&std::env::current_exe()?, &arguments)?;
            let output = process.stdout.take().context("no output")?;
            processes.push((process, BufReader::new(output).lines()));
        }
        Ok(Self { processes, redis })
    }

    /// Has each process check its users so often, all processes at once. Returns the CPU time of Redis for a decision,
    /// in microseconds.
    async fn check(&mut self, round: usize, passes: usize) -> Result<f64> {
        let pid = redis_pid(&self.redis).await?;
        let before = cpu(pid)?;
        for (index, (process, _)) in self.processes.iter_mut().enumerate() {
            let input = process.stdin.as_mut().context("no input")?;
            input.write_all(format!("r{round}p{index:02} {passes}\n").as_bytes()).await?;
        }
        for (_, output) in &mut self.processes {
            let admitted = output.next_line().await?.context("a process has ended")?;
            ensure!(admitted == (USERS * passes).to_string(), "{admitted} admitted");
        }
        let decisions = (PROCESSES * USERS * passes) as f64;
        Ok((cpu(pid)? - before).as_secs_f64() * 1e6 / decisions)
    }
}

/// One process of a fleet. Each line of its input is what its users are called and how often each is checked. Prints how
/// many checks were admitted. Ends with the input.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn work(checks: Checks, redis: &str) -> Result<()> {
    let checks = checks.connect(redis).await?;
    // Nothing else is to run while it waits for a line.
    for line in stdin().lines() {
        let line = line?;
        let (name, passes) = line.split_once(' ').context("a word is missing")?;
        let mut admitted = 0;
        for _ in 0..passes.parse()? {
            for user in 0..USERS {
                admitted += usize::from(checks.admit(&format!("{name}-{user:04}")).await?);
            }
        }
        println!("{admitted}");
    }
    Ok(())
}
