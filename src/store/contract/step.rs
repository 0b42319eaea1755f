//! [`Step`]: a call of the store, or a change of its clock or of a policy.

/// The longest window of every policy. It is far longer than a test takes, because the TTLs of Redis
/// keys run on the server's real clock.
pub(in crate::store) const LONGEST_WINDOW_US: u64 = 1_000_000_000;

/// A step of a history. A log is given by the indices of its policy and its key, and an earlier check
/// by its index.
#[derive(Clone, Debug)]
pub(in crate::store) enum Step {
    Advance(u64),
    /// Only in the tests of this crate, because the clock of a store may not be able to step back.
    #[cfg_attr(not(test), allow(dead_code, reason = "the public histories do not step back"))]
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
