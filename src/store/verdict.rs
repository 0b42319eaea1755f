//! [`Verdict`]: a store's answer.

use smallvec::SmallVec;

pub use crate::penalty::Struck;
pub use crate::window::QuotaState;

/// A store's answer to a [`Check`](super::Check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether every window recorded the request; else none did.
    pub admitted: bool,
    /// When, on the store's clock, in microseconds since the store's epoch. A store may leave it
    /// out if it is not wanted.
    pub at_us: Option<u64>,
    /// How each quota stands after the decision: partition by partition, the policy's quotas and
    /// then its candidates. The wait of a candidate is as it was before.
    pub states: SmallVec<[QuotaState; 2]>,
    /// How the key of each partition stands whose policy has a penalty, if it is banned or this
    /// request was a strike.
    pub bans: SmallVec<[BanState; 0]>,
    /// Who decided. Defaults to the store.
    pub decided_by: DecidedBy,
    /// Whether a denied request was recorded in some logs for a while.
    pub(crate) rollback: Rollback,
    /// Whether it is a denial that was remembered, and not the store's answer to this check.
    pub(crate) remembered: bool,
}

/// What became of a denied request in logs that had recorded it before another one denied it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "one server needs none"))]
pub(crate) enum Rollback {
    /// None had.
    #[default]
    NotNeeded,
    /// It was removed from them again.
    Done,
    /// It may be there still, and has to be cancelled.
    Unfinished,
}

/// How a key stands with a policy's [`Penalty`](crate::Penalty).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanState {
    /// Which of the check's partitions it is.
    pub partition: usize,
    /// How long the ban goes on, in microseconds. Zero if there is none.
    pub wait_us: u64,
    /// What this request was to it.
    pub struck: Struck,
}

impl BanState {
    /// Creates a state from its parts, in their order.
    #[must_use]
    pub const fn new(partition: usize, wait_us: u64, struck: Struck) -> Self {
        Self { partition, wait_us, struck }
    }

    /// Tells whether there is something to tell.
    pub(crate) fn matters(&self) -> bool {
        self.wait_us > 0 || self.struck != Struck::No
    }
}

/// Who decided on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store, from the windows that all who use it share.
    #[default]
    Store,
    /// A window in this process, for the store did not answer or has yet to be told of what was
    /// decided here before.
    LocalWindow,
    /// The failure policy `Open`: the request was admitted and not counted.
    FailurePolicy,
}

impl Verdict {
    /// Creates an answer.
    #[must_use]
    pub fn new(admitted: bool, at_us: Option<u64>, states: SmallVec<[QuotaState; 2]>) -> Self {
        let bans = SmallVec::new();
        let (decided_by, rollback) = (DecidedBy::Store, Rollback::NotNeeded);
        Self { admitted, at_us, states, bans, decided_by, rollback, remembered: false }
    }
}
