//! [`Step`]: a call of the store, or a change of its clock or of a policy. Histories of random steps.

use std::ops::Range;

use fastrand::Rng;

/// The longest window of every policy. It is far longer than a test takes, because the TTLs of Redis
/// keys run on the server's real clock.
pub(in crate::store) const LONGEST_WINDOW_US: u64 = 1_000_000_000;

/// The policy that counts distinct values.
pub(super) const PEERS: usize = 2;
/// The policy that counts requests in flight.
pub(super) const JOBS: usize = 3;
/// The budget.
pub(super) const TOKENS: usize = 4;
/// The policies 0 and 1 as they were before the last change of their limits, as a process has them that was not reloaded yet.
pub(super) const EARLIER: usize = 5;
/// The first of four values, each of them with the policy [`PEERS`].
pub(super) const VALUES: usize = 7;

/// A step of a history. A log is given by its policy and the index of its key, in a check also by the cost there, and an
/// earlier check by its index.
#[derive(Clone, Debug)]
pub(in crate::store) enum Step {
    Advance(u64),
    /// Only in the tests of this crate, because the clock of a store may not be able to step back.
    Rewind(u64),
    Check(Vec<(usize, usize, u32)>),
    /// An earlier check, sent again as if its reply was lost. Only to a store that does so itself.
    Again(usize),
    /// Renews the leases of an earlier check.
    Renew(usize),
    Peek(Vec<(usize, usize, u32)>),
    /// An earlier check and the number of places that it takes from now on, 0 if it is cancelled: in all of its logs, or in
    /// one, given by its index.
    Settle(usize, u32, Option<usize>),
    Reset(usize, usize),
    /// Imposes a ban of a length, unless a ban stands that was imposed for as long if the flag is set. Ignored
    /// unless the policy has a penalty.
    Ban(u64, bool, (usize, usize)),
    Lift(usize, usize),
    /// A policy, the limits of its long and its short window, and the length of the short one in quarters of the longest of
    /// all.
    SetLimits(usize, u32, u32, u64),
}

/// Returns a history of the given number of steps.
///
/// If the clock steps back, no ban is imposed by hand.
pub(in crate::store) fn history(
    random: &mut Rng,
    steps: usize,
    clock_steps_back: bool,
) -> Vec<Step> {
    (0..steps).map(|_| step(random, clock_steps_back)).collect()
}

fn step(random: &mut Rng, clock_steps_back: bool) -> Step {
    match random.u32(0..31) {
        0..5 => Step::Advance(advance_us(random)),
        5..15 => Step::Check(logs(random, 0..6)),
        15..17 => Step::Again(random.usize(..1 << 16)),
        17 => Step::Peek(logs(random, 0..6)),
        18..20 => Step::Settle(random.usize(..1 << 16), 0, None),
        20 => Step::Reset(random.usize(0..EARLIER), random.usize(0..2)),
        21 => Step::Lift(random.usize(0..EARLIER), random.usize(0..2)),
        22 | 23 if clock_steps_back => Step::Rewind(random.u64(1..LONGEST_WINDOW_US)),
        22 | 23 => {
            let log = (random.usize(0..EARLIER), random.usize(0..2));
            Step::Ban(random.u64(0..LONGEST_WINDOW_US), random.bool(), log)
        }
        number @ 24..27 => {
            let (index, cost) = (random.usize(..1 << 16), random.u32(0..8));
            Step::Settle(index, cost, (number == 26).then(|| random.usize(..1 << 16)))
        }
        27 | 28 => Step::Renew(random.usize(..1 << 16)),
        _ => {
            let (long, short) = (random.u32(1..9), random.u32(1..6));
            Step::SetLimits(random.usize(0..EARLIER), long, short, random.u64(1..4))
        }
    }
}

/// Returns up to three logs, most often at a cost of 1 in each.
fn logs(random: &mut Rng, costs: Range<u32>) -> Vec<(usize, usize, u32)> {
    let same = if random.u8(0..7) < 5 { 1 } else { random.u32(costs.clone()) };
    let is_same = random.u8(0..4) > 0;
    let cost = |random: &mut Rng| if is_same { same } else { random.u32(costs.clone()) };
    let count = random.usize(1..4);
    let policy = |random: &mut Rng| match random.u8(0..10) {
        0 => random.usize(EARLIER..VALUES),
        1 | 2 => random.usize(VALUES..VALUES + 4),
        3 => JOBS,
        4..7 => TOKENS,
        _ => random.usize(0..2),
    };
    (0..count).map(|_| (policy(random), random.usize(0..2), cost(random))).collect()
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
