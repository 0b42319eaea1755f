//! What a decision costs Redis: if no connection has a second request to share a call with, if one has many, and on a
//! Cluster.

use std::time::Duration;

use anyhow::{Result, ensure};
use test_support::{Cluster, Redis, patient};
use tokio::task::JoinSet;
use tower_sliding_window::{Limiter, Policy, Quota, RedisServers, RedisStore};

use crate::limiters::{LIMIT, MINUTE, Textbook};
use crate::programs::{cpu, redis_pid};
use crate::table::Table;

/// Stores, each with a connection of its own, in place of as many processes.
const FLEET: usize = 16;
/// How many checks one process has under way.
const TASKS: usize = 64;
/// How many requests a task makes in a round: of as many users, or of fewer that make several each.
const EACH: usize = 500;
/// How many requests a user of a budget makes, and of the plain quota beside it.
const OF_A_USER: usize = 10;
const MOST_TOKENS: u32 = 100_000;

/// What checks, on one connection.
#[derive(Clone)]
enum Checks {
    /// A request costs up to so much.
    Ours(Limiter, u32),
    Textbook(Textbook),
}

impl Checks {
    async fn ours(servers: RedisServers) -> Result<Self> {
        let store = patient().connect(servers).await?;
        Ok(Self::Ours(Limiter::new(Quota::new(LIMIT, MINUTE), store), 1))
    }

    async fn textbook(url: &str) -> Result<Self> {
        Ok(Self::Textbook(Textbook::new(url, MINUTE).await?))
    }

    /// Has room for all requests of a user, as what the same number of requests fills.
    fn with_budget(store: &RedisStore) -> [Self; 2] {
        let quota = |limit| Quota::new(limit, MINUTE);
        let (requests, tokens) = (OF_A_USER as u32, OF_A_USER as u32 * MOST_TOKENS);
        let budget = Policy::new("tokens").quota(quota(tokens)).budget();
        let limiters = [Policy::new("plain").quota(quota(requests)), budget];
        let [plain, budget] = limiters.map(|policy| Limiter::new(policy, store.clone()));
        [Self::Ours(plain, 1), Self::Ours(budget, MOST_TOKENS)]
    }

    async fn admit(&self, user: &str) -> Result<bool> {
        Ok(match self {
            Self::Ours(limiter, most) => {
                limiter.check_cost(user, fastrand::u32(1..=*most)).await?.is_admitted()
            }
            Self::Textbook(textbook) => textbook.admit(user, LIMIT).await?,
        })
    }
}

/// Measures all in turn, round after round.
pub(crate) async fn run(rounds: usize) -> Result<Table> {
    let (redis, textbook_redis, cluster) =
        (Redis::start().await, Redis::start().await, Cluster::start().await);
    let (url, textbook_url) = (redis.url(), textbook_redis.url());
    let (mut fleet, mut textbook_fleet) = (Vec::new(), Vec::new());
    for _ in 0..FLEET {
        fleet.push(Checks::ours(RedisServers::try_from(&*url)?).await?);
        textbook_fleet.push(Checks::textbook(&textbook_url).await?);
    }
    let at_once = |checks: Checks| vec![checks; TASKS];
    let ours = at_once(Checks::ours(RedisServers::try_from(&*url)?).await?);
    let textbook = at_once(Checks::textbook(&textbook_url).await?);
    let on_cluster = at_once(Checks::ours(RedisServers::cluster(cluster.urls())?).await?);
    let [plain, budget] = Checks::with_budget(&patient().connect(url).await?).map(at_once);
    let (redis, textbook_redis) = ([redis], [textbook_redis]);
    let later = LIMIT as usize - 1;

    let mut costs = [const { Vec::new() }; 9];
    for round in 0..=rounds {
        eprintln!("fleet: round {round} of {rounds}");
        let (alone, shared) = (format!("a{round}"), format!("s{round}"));
        let seen = [
            cost(&fleet, &redis, &alone, EACH, 1).await?,
            cost(&fleet, &redis, &alone, EACH, later).await?,
            cost(&textbook_fleet, &textbook_redis, &alone, EACH, 1).await?,
            cost(&textbook_fleet, &textbook_redis, &alone, EACH, later).await?,
            cost(&ours, &redis, &shared, EACH, 1).await?,
            cost(&textbook, &textbook_redis, &shared, EACH, 1).await?,
            cost(&on_cluster, &cluster.nodes, &shared, EACH, 1).await?,
            cost(&plain, &redis, &shared, EACH / OF_A_USER, OF_A_USER).await?,
            cost(&budget, &redis, &shared, EACH / OF_A_USER, OF_A_USER).await?,
        ];
        // The first round warms up.
        if round > 0 {
            costs.iter_mut().zip(seen).for_each(|(costs, seen)| costs.push(seen));
        }
    }
    let [new, later, new_textbook, later_textbook, one, one_textbook, busiest, plain, budget] =
        costs;
    let mut table = Table::of_goals("A fleet, one process, and a Cluster");
    table.goal("new users: Redis CPU / textbook script", &new, &new_textbook, 1.05);
    let name = "their 2nd to 5th request: Redis CPU / textbook script";
    table.goal(name, &later, &later_textbook, 1.1);
    let name = "one process with 64 under way, new users: Redis CPU / textbook script";
    table.goal(name, &one, &one_textbook, 0.65);
    // Three servers should do 1.7 times the work of one.
    let name = "the same on a Cluster of three: CPU of the busiest / one server";
    table.goal(name, &busiest, &one, 0.59);
    let name = "one process with 64 under way, ten requests a user: budget of tokens / plain quota";
    table.goal(name, &budget, &plain, 1.3);
    Ok(table)
}

/// Checks each user of each task `passes` times. A task has one check under way. Returns the CPU time of the busiest
/// server for a decision, in microseconds.
async fn cost(
    tasks: &[Checks],
    servers: &[Redis],
    name: &str,
    users: usize,
    passes: usize,
) -> Result<f64> {
    let mut before = Vec::new();
    for server in servers {
        let pid = redis_pid(server).await?;
        before.push((pid, cpu(pid)?));
    }
    let mut running = JoinSet::new();
    for (task, checks) in tasks.iter().cloned().enumerate() {
        let name = format!("{name}t{task:02}");
        running.spawn(async move {
            for user in (0..passes).flat_map(|_| 0..users) {
                ensure!(checks.admit(&format!("{name}-{user:04}")).await?, "a denial");
            }
            Ok(())
        });
    }
    running.join_all().await.into_iter().collect::<Result<()>>()?;
    let mut busiest = Duration::ZERO;
    for (pid, before) in before {
        busiest = busiest.max(cpu(pid)? - before);
    }
    Ok(busiest.as_secs_f64() * 1e6 / (tasks.len() * users * passes) as f64)
}
