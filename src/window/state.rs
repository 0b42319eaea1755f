//! [`QuotaState`] and [`BanState`]: what an outcome says of each quota and of a ban.

use std::time::Duration;

use uuid::Uuid;

use super::ban_record::{BanRecord, Strike};
use crate::policy::Penalty;
use crate::time::micros;

/// The state of one quota at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaState {
    pub(crate) remaining: u32,
    pub(crate) wait_us: u64,
    pub(crate) reset_us: u64,
}

impl QuotaState {
    /// Creates a state from its parts, see the methods of the same names. Lengths of time are
    /// truncated to whole microseconds.
    pub fn new(remaining: u32, wait: Duration, reset: Duration) -> Self {
        Self { remaining, wait_us: micros(wait), reset_us: micros(reset) }
    }

    /// Returns how many places are free.
    pub const fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns how long until there is room for the check's cost in this log: zero if there was room when the
    /// store decided.
    pub const fn wait(&self) -> Duration {
        Duration::from_micros(self.wait_us)
    }

    /// Returns how long until the oldest entry leaves the window: zero if the window holds no entry.
    ///
    /// A store may return zero unless [`Check::wants_reset`](super::Check::wants_reset) is set.
    pub const fn reset(&self) -> Duration {
        Duration::from_micros(self.reset_us)
    }

    /// Returns whether there was no room for the check's cost in this log.
    pub const fn is_full(&self) -> bool {
        self.wait_us > 0
    }
}

/// The ban of a key under a policy's [`Penalty`](crate::Penalty). Defaults to no ban and no strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanState {
    pub(crate) remaining_us: u64,
    pub(crate) strike: Strike,
    /// For how long further denials are no strikes, if the store says so.
    pub(crate) episode_us: u64,
}

impl BanState {
    /// Creates a state from the remaining length of the ban, zero if there is none, and the effect of
    /// the check on the key's strikes.
    pub fn new(remaining: Duration, strike: Strike) -> Self {
        Self { remaining_us: micros(remaining), strike, episode_us: 0 }
    }

    /// Returns the ban of a request, and counts it as a strike if `record` is set. `full_us` is the longest
    /// window among the full quotas, zero if none denies the request.
    pub(crate) fn of(
        ban_record: &mut BanRecord,
        now_us: u64,
        id: Uuid,
        (full_us, penalty): (u64, &Penalty),
        record: bool,
    ) -> Self {
        let mut strike = Strike::None;
        if ban_record.wait_us(now_us) == 0 && full_us > 0 && record {
            strike = ban_record.strike(now_us, id, full_us, penalty);
        }
        let episode_us = ban_record.episode_us(now_us);
        Self { remaining_us: ban_record.wait_us(now_us), strike, episode_us }
    }

    /// Returns the remaining length of the ban, zero if there is none.
    pub const fn remaining(&self) -> Duration {
        Duration::from_micros(self.remaining_us)
    }

    /// Returns the effect of the check on the key's strikes.
    pub const fn strike(&self) -> Strike {
        self.strike
    }

    /// Returns whether the key is banned.
    pub const fn is_banned(&self) -> bool {
        self.remaining_us > 0
    }
}
