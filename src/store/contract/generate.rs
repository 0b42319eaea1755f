//! Generates the pseudo-random histories of the public contract test.

use fastrand::Rng;

use super::step::{LONGEST_WINDOW_US, Step};

/// Returns a history of the given number of steps.
pub(super) fn history(random: &mut Rng, steps: usize) -> Vec<Step> {
    (0..steps).map(|_| step(random)).collect()
}

fn step(random: &mut Rng) -> Step {
    match random.u32(0..26) {
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
        23 => Step::RestoreBan {
            remaining_us: random.u64(0..LONGEST_WINDOW_US),
            log: (random.usize(0..2), random.usize(0..2)),
        },
        _ => {
            let (long, short) = (random.u32(1..9), random.u32(1..6));
            Step::SetLimits(random.usize(0..2), long, short, random.u64(1..4))
        }
    }
}

/// Returns a cost, mostly 1.
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
