//! Tests that both stores decide as the pure algorithm in random histories of several logs, changed
//! limits, costs, checks sent again, settlements, cancellations and clock steps.

use fastrand::Rng;
use proptest::prelude::*;
use redis::aio::MultiplexedConnection;
use test_support::Redis;

use super::step::{BUDGET, OF_VALUES, history};
use super::{LONGEST_WINDOW_US, Player, Step};
use crate::MemoryStore;
use crate::RedisStore;
use crate::window::Check;

/// The first timestamp of a Redis history. It has as many digits as a real one.
const ORIGIN_US: u64 = 1_790_000_000_000_000;
const KEYS: [&str; 2] = ["alice", "b}o\0b%{"];

async fn play_in_memory(steps: &[Step]) -> Result<(), String> {
    tokio::time::pause();
    let store = MemoryStore::new();
    let mut player = Player::new(&store, KEYS.map(Into::into), LONGEST_WINDOW_US, true);
    player.play_under_paused_time(steps).await
}

/// Plays a history, in which checks that follow each other go in one call if `together` is set.
async fn play_on_redis(
    steps: &[Step],
    together: bool,
    (server, connection): (&Redis, &MultiplexedConnection),
    prefix: &str,
) -> Result<(), String> {
    let store = RedisStore::builder().connect_with_clock(&server.url(), prefix).await;
    let send_again = |check: &Check| store.send_again(check);
    let player = Player::new(&store, KEYS.map(Into::into), ORIGIN_US, true);
    let mut player = player.sending_again(&send_again);
    let mut move_clock = async |now_us: u64| {
        redis::cmd("HSET")
            .arg((prefix, "s", now_us / 1_000_000, "us", now_us % 1_000_000))
            .exec_async(&mut connection.clone())
            .await
            .unwrap();
    };
    if !together {
        return player.play(steps, &mut move_clock).await;
    }
    move_clock(ORIGIN_US).await;
    let is_check = |step: &Step| matches!(step, Step::Check(_));
    for steps in steps.chunk_by(|one, next| is_check(one) && is_check(next)) {
        match steps {
            [_] => player.play(steps, &mut move_clock).await?,
            checks => {
                let admit = async |checks: &[Check]| store.admit_in_one_call(checks).await;
                player.play_in_one_call(checks, admit).await?;
            }
        }
    }
    Ok(())
}

fn histories(clock_steps_back: impl Strategy<Value = bool>) -> impl Strategy<Value = Vec<Step>> {
    // Fewer steps of one seed are the beginning of the same history, so that a failure shrinks.
    let history = |(seed, steps, back)| history(&mut Rng::with_seed(seed), steps, back);
    (any::<u64>().no_shrink(), 1..80_usize, clock_steps_back).prop_map(history)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(400, |cases| cases.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn memory_store_decides_as_the_algorithm() {
    proptest!(config(), |(steps in histories(Just(false)))| {
        runtime().block_on(play_in_memory(&steps)).map_err(TestCaseError::fail)?;
    });
}

#[test]
fn script_decides_as_the_algorithm() {
    let runtime = runtime();
    let server = runtime.block_on(Redis::start());
    let connection = runtime.block_on(server.connection()).unwrap();
    let history_number = std::cell::Cell::new(0);

    let histories = (histories(any::<bool>()), any::<bool>());
    proptest!(config(), |((steps, together) in histories)| {
        history_number.set(history_number.get() + 1);
        let prefix = format!("history-{}", history_number.get());
        let redis = (&server, &connection);
        let played = runtime.block_on(play_on_redis(&steps, together, redis, &prefix));
        played.map_err(TestCaseError::fail)?;
    });
}

/// Random histories seldom reach the boundaries of a single quota. This history reaches all of them.
#[test]
fn script_is_exact_at_its_boundaries() {
    let runtime = runtime();
    let server = runtime.block_on(Redis::start());
    let connection = runtime.block_on(server.connection()).unwrap();
    for limit in 1..4 {
        for offsets in [
            [0, 1],
            [1, LONGEST_WINDOW_US - 1],
            [400_000, 700_000],
            [2, LONGEST_WINDOW_US - 400_000],
        ] {
            let mut steps = vec![Step::SetLimits(0, limit, 1, 3)];
            for _ in 0..6 {
                for offset in offsets {
                    for advance in [offset, 0, LONGEST_WINDOW_US - offset - 1, 1] {
                        steps.push(Step::Advance(advance));
                        steps.push(Step::Check(vec![(0, 0, 1)]));
                        steps.push(Step::Peek(vec![(0, 0, 1)]));
                    }
                }
            }
            let prefix = format!("{limit}-{}", offsets[1]);
            runtime
                .block_on(play_on_redis(&steps, false, (&server, &connection), &prefix))
                .unwrap();
        }
    }
}

/// What random histories seldom find.
#[test]
fn script_is_exact_in_rare_histories() {
    let runtime = runtime();
    let server = runtime.block_on(Redis::start());
    let connection = runtime.block_on(server.connection()).unwrap();
    let (unit, budget) = (LONGEST_WINDOW_US / 20, vec![(BUDGET, 0, 1)]);
    let check = |log: &[_]| Step::Check(log.to_vec());

    // Two policies of one budget with other windows, between which the clock steps back.
    let of_window = |quarters| Step::SetLimits(4, 8, 5, quarters);
    let before =
        [of_window(1), check(&budget), Step::Advance(12 * unit), Step::Peek(budget.clone())];
    let after = [Step::Rewind(6 * unit), of_window(3), check(&budget), of_window(1)];
    let clock_steps = [&before[..], &after, &[check(&budget)]].concat();

    // A ban by hand that is over, one by strikes, and one by hand that is longer than the second only.
    let user = [(0, 0, 1)];
    let ban = |units, only_longer| Step::Ban(units * unit, only_longer, (0, 0));
    let strike = [check(&user), check(&user), Step::Advance(20 * unit)];
    let first = [Step::SetLimits(0, 1, 1, 2), ban(15, false), Step::Advance(16 * unit)];
    // Then the level falls: before a ban by strikes, and before one by hand that a ban by strikes follows.
    let later = [Step::Advance(60 * unit), ban(1, false), Step::Advance(2 * unit)];
    let falls = [&later[..1], &strike[..2], &later, &strike[..2]].concat();
    let bans = [&first[..], &strike, &strike[..2], &[ban(12, true)], &falls].concat();

    // A value above a lower limit is itself the next to leave.
    let value = |number| check(&[(OF_VALUES + number, 0, 1)]);
    let of_limit = |limit| Step::SetLimits(2, limit, limit, 2);
    let seen = (0..3).flat_map(|number| [value(number), Step::Advance(unit)]);
    let values = [of_limit(3)].into_iter().chain(seen).chain([of_limit(2), value(1), value(0)]);

    for (prefix, steps) in [("clock", clock_steps), ("bans", bans), ("values", values.collect())] {
        runtime.block_on(play_on_redis(&steps, false, (&server, &connection), prefix)).unwrap();
    }
}
