//! Tests that the scripts decide as the pure algorithm in random histories of several logs, changed limits, costs, checks
//! sent again, settlements, cancellations and clock steps.

use test_support::clock::Clock;

use super::step::{PEERS, TOKENS, VALUES};
use super::*;
use crate::RedisStore;

/// A store on a Redis with a test clock, and how many histories it has played.
struct Scripts {
    store: RedisStore,
    clock: Clock,
    histories: usize,
}

impl Scripts {
    async fn start() -> Self {
        let (store, clock) = RedisStore::with_clock().await;
        Self { store, clock, histories: 0 }
    }

    /// Plays a history, in which checks that follow each other go in one call if `together` is set.
    async fn play(&mut self, steps: &[Step], together: bool) {
        self.histories += 1;
        let Self { store, clock, histories } = self;
        let keys = ["alice", "b}o\0b%{"].map(|key| Key::from(format!("{histories}{key}")));
        let send_again = |check: &Check| store.send_again(check);
        let mut player = Player::new(&*store, keys, micros(clock.now()), true);
        player.send_again = Some(&send_again);
        let mut move_clock = async |now_us: u64| {
            let (before, now) = (clock.now(), Duration::from_micros(now_us));
            match now < before {
                true => clock.step_back(before - now).await,
                false => clock.advance(now - before).await,
            }
        };
        let is_check = |step: &Step| matches!(step, Step::Check(_));
        let calls = steps.chunk_by(|one, next| !together || is_check(one) && is_check(next));
        for steps in calls {
            let played = match steps {
                steps if together && steps.len() > 1 => {
                    let admit = async |checks: &[Check]| store.admit_in_one_call(checks).await;
                    player.play_in_one_call(steps, admit).await
                }
                steps => player.play(steps, &mut move_clock).await,
            };
            played.unwrap_or_else(|difference| panic!("history {histories}: {difference}"));
        }
    }
}

#[tokio::test]
async fn scripts_decide_as_the_algorithm() {
    let mut scripts = Scripts::start().await;
    let histories = std::env::var("HISTORIES").map_or(400, |count| count.parse().unwrap());
    for seed in 0..histories {
        let steps = history(&mut Rng::with_seed(seed), STEPS, seed % 2 == 0);
        scripts.play(&steps, seed % 4 < 2).await;
    }
}

/// Random histories seldom reach the boundaries of a single quota. These reach all of them.
#[tokio::test]
async fn scripts_are_exact_at_the_boundaries() {
    let mut scripts = Scripts::start().await;
    let offsets =
        [[0, 1], [1, LONGEST_WINDOW_US - 1], [400_000, 700_000], [2, LONGEST_WINDOW_US - 400_000]];
    for (limit, offsets) in (1..4).flat_map(|limit| offsets.map(|offsets| (limit, offsets))) {
        let mut steps = vec![Step::SetLimits(0, limit, 1, 3)];
        for offset in offsets.repeat(6) {
            for advance in [offset, 0, LONGEST_WINDOW_US - offset - 1, 1] {
                let log = vec![(0, 0, 1)];
                steps.extend([Step::Advance(advance), Step::Check(log.clone()), Step::Peek(log)]);
            }
        }
        scripts.play(&steps, false).await;
    }
}

/// What random histories seldom find.
#[tokio::test]
async fn scripts_are_exact_in_rare_histories() {
    let (unit, budget) = (LONGEST_WINDOW_US / 20, vec![(TOKENS, 0, 1)]);
    let check = |log: &[_]| Step::Check(log.to_vec());

    // Two policies of one budget with other windows, between which the clock steps back.
    let of_window = |quarters| Step::SetLimits(TOKENS, 8, 5, quarters);
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

    // Bans by strikes, until the last level repeats.
    let levels = [&first[..1], &strike, &strike, &strike, &strike, &strike].concat();

    // A value above a lower limit is itself the next to leave.
    let value = |number| check(&[(VALUES + number, 0, 1)]);
    let of_limit = |limit| Step::SetLimits(PEERS, limit, limit, 2);
    let seen = (0..3).flat_map(|number| [value(number), Step::Advance(unit)]);
    let values = [of_limit(3)].into_iter().chain(seen).chain([of_limit(2), value(1), value(0)]);

    let mut scripts = Scripts::start().await;
    for steps in [clock_steps, bans, levels, values.collect()] {
        scripts.play(&steps, false).await;
    }
}
