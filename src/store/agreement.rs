//! Every store agrees with the pure algorithm, in each decision, remaining and wait, over random
//! histories of several windows, changing limits, costs, repeats, cancels and clock jumps.

mod history;
mod model;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use redis::aio::ConnectionManager;
use redis_test::server::RedisServer;

use self::history::{Step, step};
use self::model::Model;
use super::redis::tests::{Commands, connect};
use super::{Admission, Check, KnownLog, MemoryStore, Partition, Store, Verdict};
use crate::penalty::Penalty;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::window::Log;

/// Where the stamps of the Redis history begin: as many digits as real ones.
const ORIGIN_US: u64 = 1_790_000_000_000_000;
/// The longest window of every policy. The keys' TTLs run on the server's own clock, so it is
/// far longer than a test takes.
const HORIZON_US: u64 = 1_000_000_000;
const KEYS: [&str; 2] = ["alice", "b}o\0b%{"];

fn penalty() -> Penalty {
    let strikes = Quota::new(2, Duration::from_micros(HORIZON_US * 2));
    let ladder = [HORIZON_US / 2, HORIZON_US * 3].map(Duration::from_micros);
    Penalty::new(strikes, ladder).unwrap().decay(Duration::from_micros(HORIZON_US * 4)).jitter(20)
}

/// What a store has to answer: more than was asked for is its own affair.
fn wanted(check: &Check, mut verdict: Verdict) -> Verdict {
    verdict.at_us = verdict.at_us.filter(|_| check.wants_stamp);
    if !check.wants_reset {
        verdict.states.iter_mut().for_each(|state| state.reset_us = 0);
    }
    verdict
}

/// Tells a store and the model of a request that was admitted elsewhere.
async fn restore(
    store: &dyn Store,
    model: &mut Model,
    check: &Check,
    age_us: u64,
    confirmed: bool,
) -> Result<(), TestCaseError> {
    let age = Duration::from_micros(age_us);
    let admission = Admission { confirmed, ..Admission::new(check.id, check.cost, age) };
    let mut added = 0;
    for log in &check.partitions {
        added += store.restore(log, &KnownLog::new(vec![admission])).await.unwrap().added;
    }
    prop_assert_eq!(added, model.restore(check, age_us, !confirmed));
    Ok(())
}

/// What a history is played to.
trait Subject {
    fn store(&self) -> &dyn Store;
    async fn move_clock(&mut self, now_us: u64);
}

async fn play(
    steps: Vec<Step>,
    subject: &mut impl Subject,
    origin_us: u64,
) -> Result<(), TestCaseError> {
    let policy = |at: usize, long: u32, short: u32, quarters: u64| {
        let short = Quota::new(short, Duration::from_micros(HORIZON_US / 4 * quarters - 1));
        let long = Quota::new(long, Duration::from_micros(HORIZON_US));
        let candidate = Quota::new(3, Duration::from_micros(HORIZON_US / 4 * quarters));
        let policy = Policy::new(["user", "ip"][at]).quota(long);
        Arc::new(match quarters {
            1 => policy.quota(short).candidate(candidate),
            2 => policy.quota(short).penalty(penalty()),
            _ => policy,
        })
    };
    let mut policies = [policy(0, 4, 2, 1), policy(1, 5, 3, 2)];
    let mut model = Model::at(origin_us);
    let mut asked: Vec<(u64, Arc<Check>)> = Vec::new();
    subject.move_clock(model.now_us).await;

    // The latest reset of any log, before which stores that are shared restore nothing.
    let mut reset_us = None;
    for step in steps {
        let restorable_us = |age_us: u64, model: &Model| {
            // The memory store has no timestamps from before its creation.
            age_us.min(model.now_us.saturating_sub(reset_us.unwrap_or(origin_us)))
        };
        // A clock that has stepped back behind a reset is not restored to.
        let restores = reset_us.is_none_or(|reset_us| reset_us <= model.now_us);
        let question = |cost: u32, windows: &[(usize, usize)]| {
            let mut check = Check::new(windows.iter().map(|(policy, key)| Partition {
                policy: policies[*policy].clone(),
                key: KEYS[*key].into(),
            }));
            // These Redis decides with its shorter script.
            let policy = &policies[windows[0].0];
            let plain = windows.len() == 1
                && policy.judged().len() == 1
                && policy.penalty_for_strikes().is_none();
            (check.cost, check.wants_reset, check.wants_stamp) = (cost, !plain, !plain);
            Arc::new(check)
        };
        match step {
            Step::Advance(us) => model.now_us += us,
            Step::Rewind(us) => model.now_us -= us.min(model.now_us),
            Step::SetLimits(at, long, short, quarters) => {
                policies[at] = policy(at, long, short, quarters);
            }
            Step::Check { cost, ref windows } => {
                let check = question(cost, windows);
                if check.possible().is_ok() {
                    let verdict = subject.store().admit(&check).await.unwrap();
                    let expected = wanted(&check, model.decide(&check, true));
                    prop_assert_eq!(wanted(&check, verdict), expected, "{:?}", step);
                    asked.push((model.now_us, check));
                }
            }
            Step::Peek { cost, ref windows } => {
                let check = question(cost, windows);
                if check.possible().is_ok() {
                    let verdict = subject.store().peek(&check).await.unwrap();
                    let expected = wanted(&check, model.decide(&check, false));
                    prop_assert_eq!(wanted(&check, verdict), expected, "{:?}", step);
                }
            }
            Step::Repeat(at) if !asked.is_empty() => {
                let (_, mut check) = asked[at % asked.len()].clone();
                Arc::make_mut(&mut check).repeated = true;
                let verdict = subject.store().admit(&check).await.unwrap();
                let expected = wanted(&check, model.decide(&check, true));
                prop_assert_eq!(wanted(&check, verdict), expected, "{:?}", step);
            }
            Step::Cancel(at) if !asked.is_empty() => {
                let (_, check) = &asked[at % asked.len()];
                let was_live = subject.store().cancel(check).await.unwrap();
                prop_assert_eq!(was_live, model.cancel(check), "{:?}", step);
            }
            Step::Reset(at, key) => {
                let check = question(1, &[(at, key)]);
                subject.store().reset(&check.partitions).await.unwrap();
                *model.log(&check.partitions[0]) = Log::new();
                reset_us = reset_us.max(Some(model.now_us));
            }
            Step::Restore { age_us, cost, confirmed, ref windows } if restores => {
                let check = question(cost, windows);
                let age_us = restorable_us(age_us, &model);
                restore(subject.store(), &mut model, &check, age_us, confirmed).await?;
                asked.push((model.now_us - age_us, check));
            }
            Step::RestoreKnown(at, age_us, confirmed) if restores && !asked.is_empty() => {
                let (_, check) = asked[at % asked.len()].clone();
                let age_us = restorable_us(age_us, &model);
                restore(subject.store(), &mut model, &check, age_us, confirmed).await?;
                asked.push((model.now_us - age_us, check));
            }
            Step::Repeat(_) | Step::Cancel(_) | Step::Restore { .. } | Step::RestoreKnown(..) => {}
        }
        subject.move_clock(model.now_us).await;
    }
    Ok(())
}

struct InMemory {
    store: MemoryStore,
    now_us: u64,
}

impl Subject for InMemory {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&mut self, now_us: u64) {
        tokio::time::advance(Duration::from_micros(now_us - self.now_us)).await;
        self.now_us = now_us;
    }
}

struct OnRedis {
    store: Commands,
    connection: ConnectionManager,
    prefix: String,
}

impl Subject for OnRedis {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&mut self, now_us: u64) {
        redis::cmd("HSET")
            .arg((&self.prefix, "s", now_us / 1_000_000, "us", now_us % 1_000_000))
            .exec_async(&mut self.connection)
            .await
            .unwrap();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn config(name: &'static str) -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(400, |cases| cases.parse().unwrap()),
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::Direct(
            name,
        ))),
        ..ProptestConfig::default()
    }
}

#[test]
fn the_memory_store_agrees_with_the_algorithm() {
    let histories = prop::collection::vec(step(false), 1..80);
    proptest!(config("tests/regressions/memory.txt"), |(steps in histories)| {
        let runtime = runtime();
        runtime.block_on(async {
            tokio::time::pause();
            let mut subject = InMemory { store: MemoryStore::new(), now_us: 0 };
            play(steps, &mut subject, HORIZON_US).await
        })?;
    });
}

#[test]
fn the_script_agrees_with_the_algorithm() {
    let server = RedisServer::new();
    let runtime = runtime();
    let connection = runtime.block_on(connect(&server));
    let history_number = std::cell::Cell::new(0);

    let histories = prop::collection::vec(step(true), 1..80);
    proptest!(config("tests/regressions/script.txt"), |(steps in histories)| {
        history_number.set(history_number.get() + 1);
        let prefix = format!("history-{}", history_number.get());
        let store = Commands::with_clock(connection.clone(), &prefix);
        let mut subject = OnRedis { store, connection: connection.clone(), prefix };
        runtime.block_on(play(steps, &mut subject, ORIGIN_US))?;
    });
}

/// Random histories seldom meet a boundary of the shorter script: these go through all of them.
#[test]
fn the_shorter_script_agrees_at_its_boundaries() {
    let server = RedisServer::new();
    let runtime = runtime();
    let connection = runtime.block_on(connect(&server));
    for limit in 1..4 {
        for offsets in [[0, 1], [1, HORIZON_US - 1], [400_000, 700_000], [2, HORIZON_US - 400_000]]
        {
            let mut steps = vec![Step::SetLimits(0, limit, 1, 3)];
            for _ in 0..6 {
                for offset in offsets {
                    for advance in [offset, 0, HORIZON_US - offset - 1, 1] {
                        steps.push(Step::Advance(advance));
                        steps.push(Step::Check { cost: 1, windows: vec![(0, 0)] });
                        steps.push(Step::Peek { cost: 1, windows: vec![(0, 0)] });
                    }
                }
            }
            let prefix = format!("{limit}-{}", offsets[1]);
            let store = Commands::with_clock(connection.clone(), &prefix);
            let mut subject = OnRedis { store, connection: connection.clone(), prefix };
            runtime.block_on(play(steps, &mut subject, ORIGIN_US)).unwrap();
        }
    }
}
