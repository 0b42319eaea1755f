//! [`Step`]: a call of the store, or a change of its clock or of a policy. Histories of random steps.

use fastrand::Rng;

/// The longest window of every policy. It is far longer than a test takes, because the TTLs of Redis
/// keys run on the server's real clock.
pub(in crate::store) const LONGEST_WINDOW_US: u64 = 1_000_000_000;

/// A step of a history. A log is given by the indices of its policy and its key, and an earlier check
/// by its index.
#[derive(Clone, Debug)]
pub(in crate::store) enum Step {
    Advance(u64),
    /// Only in the tests of this crate, because the clock of a store may not be able to step back.
    Rewind(u64),
    Check {
        cost: u32,
        logs: Vec<(usize, usize)>,
    },
    Repeat(usize),
    Peek {
        cost: u32,
        logs: Vec<(usize, usize)>,
    },
    Cancel(usize),
    /// An earlier check and the number of places that it takes from now on.
    Settle(usize, u32),
    Reset(usize, usize),
    Restore {
        age_us: u64,
        cost: u32,
        confirmed: bool,
        logs: Vec<(usize, usize)>,
    },
    /// Restores an earlier check with an age, confirmed or not.
    RestoreEarlier(usize, u64, bool),
    /// Ignored unless the policy has a penalty.
    RestoreBan {
        remaining_us: u64,
        log: (usize, usize),
    },
    /// A policy, the limits of its long and its short window, and the length of the short one in quarters
    /// of the long one.
    SetLimits(usize, u32, u32, u64),
}

/// Returns a history of the given number of steps.
///
/// If the clock steps back, no ban is restored.
pub(super) fn history(random: &mut Rng, steps: usize, clock_steps_back: bool) -> Vec<Step> {
    (0..steps).map(|_| step(random, clock_steps_back)).collect()
}

fn step(random: &mut Rng, clock_steps_back: bool) -> Step {
    match random.u32(0..29) {
        0..5 => Step::Advance(advance_us(random)),
        5..15 => Step::Check { cost: cost(random), logs: logs(random) },
        15..17 => Step::Repeat(random.usize(..1 << 16)),
        17 => Step::Peek { cost: cost(random), logs: logs(random) },
        18..20 => Step::Cancel(random.usize(..1 << 16)),
        20 => Step::Reset(random.usize(0..2), random.usize(0..2)),
        21 => Step::Restore {
            age_us: random.u64(0..LONGEST_WINDOW_US * 5 / 4),
            cost: random.u32(1..4),
            confirmed: random.bool(),
            logs: logs(random),
        },
        22 => {
            let (index, age_us) = (random.usize(..1 << 16), random.u64(0..LONGEST_WINDOW_US));
            Step::RestoreEarlier(index, age_us, random.bool())
        }
        23 if clock_steps_back => Step::Rewind(random.u64(1..LONGEST_WINDOW_US)),
        23 => Step::RestoreBan {
            remaining_us: random.u64(0..LONGEST_WINDOW_US),
            log: (random.usize(0..2), random.usize(0..2)),
        },
        24..27 => Step::Settle(random.usize(..1 << 16), random.u32(0..8)),
        _ => {
            let (long, short) = (random.u32(1..9), random.u32(1..6));
            Step::SetLimits(random.usize(0..2), long, short, random.u64(1..4))
        }
    }
}

fn cost(random: &mut Rng) -> u32 {
    if random.u8(0..7) < 6 { 1 } else { random.u32(0..6) }
}

fn logs(random: &mut Rng) -> Vec<(usize, usize)> {
    let count = random.usize(1..4);
    (0..count).map(|_| (random.usize(0..2), random.usize(0..2))).collect()
}

/// Returns a length of time, often exactly that of a window, or one microsecond more or less.
fn advance_us(random: &mut Rng) -> u64 {
    match random.u8(0..8) {
        0..3 => random.u64(0..LONGEST_WINDOW_US / 3),
        3..5 => random.u64(0..2_000_000),
        5..7 => {
            let offset = random.u64(0..3);
            (random.u64(0..4) * LONGEST_WINDOW_US / 4 + offset).saturating_sub(1)
        }
        _ => random.u64(1..LONGEST_WINDOW_US),
    }
}
