//! [`Step`]: what is asked of a store, and how its clock moves.

/// The longest window of every policy. The TTLs of Redis keys run on the server's own clock, so it
/// is far longer than a test takes.
pub(in crate::store) const LONGEST_WINDOW_US: u64 = 1_000_000_000;

/// A step of a history. Logs are given as policy and key, earlier checks by their place.
#[derive(Clone, Debug)]
pub(in crate::store) enum Step {
    Advance(u64),
    /// Only for the tests of this crate: a store's clock may not be able to step back.
    #[cfg_attr(not(test), allow(dead_code, reason = "the public histories do not step back"))]
    Rewind(u64),
    Check {
        cost: u32,
        windows: Vec<(usize, usize)>,
    },
    Repeat(usize),
    Peek {
        cost: u32,
        windows: Vec<(usize, usize)>,
    },
    Cancel(usize),
    Reset(usize, usize),
    Restore {
        age_us: u64,
        cost: u32,
        confirmed: bool,
        windows: Vec<(usize, usize)>,
    },
    RestoreKnown(usize, u64, bool),
    /// Only where a policy with a penalty is in use.
    RestoreBan {
        remaining_us: u64,
        window: (usize, usize),
    },
    SetLimits(usize, u32, u32, u64),
}
