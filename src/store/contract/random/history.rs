//! The strategy of random histories.

use proptest::prelude::*;

use crate::store::contract::{LONGEST_WINDOW_US, Step};

pub(super) const KEYS: [&str; 2] = ["alice", "b}o\0b%{"];

pub(super) fn step(clock_may_step_back: bool) -> impl Strategy<Value = Step> {
    let logs = || prop::collection::vec((0..2_usize, 0..KEYS.len()), 1..4);
    let cost = || prop_oneof![6 => Just(1_u32), 1 => 0..6_u32];
    // Often exactly the length of a window, or one microsecond more or less.
    let advance = prop_oneof![
        3 => 0..LONGEST_WINDOW_US / 3,
        2 => 0..2_000_000_u64,
        2 => (0..4_u64, 0..3_u64).prop_map(|(n, off)| (n * LONGEST_WINDOW_US / 4 + off).saturating_sub(1)),
    ];
    let back = move |us| if clock_may_step_back { Step::Rewind(us) } else { Step::Advance(us) };
    prop_oneof![
        4 => advance.prop_map(Step::Advance),
        1 => (1..LONGEST_WINDOW_US).prop_map(back),
        10 => (cost(), logs()).prop_map(|(cost, logs)| Step::Check { cost, logs }),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::Repeat(at.index(1 << 16))),
        1 => (cost(), logs()).prop_map(|(cost, logs)| Step::Peek { cost, logs }),
        2 => any::<prop::sample::Index>().prop_map(|at| Step::Cancel(at.index(1 << 16))),
        1 => (0..2_usize, 0..KEYS.len()).prop_map(|(policy, key)| Step::Reset(policy, key)),
        1 => (0..LONGEST_WINDOW_US * 5 / 4, 1..4_u32, any::<bool>(), logs()).prop_map(
            |(age_us, cost, confirmed, logs)| Step::Restore { age_us, cost, confirmed, logs },
        ),
        1 => (any::<prop::sample::Index>(), 0..LONGEST_WINDOW_US, any::<bool>())
            .prop_map(|(at, age_us, confirmed)| Step::RestoreEarlier(at.index(1 << 16), age_us, confirmed)),
        1 => (0..2_usize, 1..9_u32, 1..6_u32, 1..4_u64)
            .prop_map(|(at, long, short, quarters)| Step::SetLimits(at, long, short, quarters)),
    ]
}
