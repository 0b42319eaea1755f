//! [`Outcome`]: the result of a check, with a [`QuotaState`] for each quota, and a [`BanState`] for each log.

use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use super::ban_record::{BanRecord, Strike};
use super::check::Check;
use super::log_id::LogId;
use crate::policy::{Penalty, Policy};
use crate::quota::Quota;
use crate::time::micros;

/// The result of a [`Check`](super::Check) by a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Whether the request was admitted. Every log recorded it then, otherwise none did. For a peek:
    /// whether it would be admitted.
    pub admitted: bool,
    /// The timestamp of the decision, on the store's clock. Each store gives it.
    pub timestamp: Option<Duration>,
    /// What decided. Defaults to [`DecidedBy::Store`].
    pub decided_by: DecidedBy,
    logs: SmallVec<[LogOutcome; 2]>,
}

impl Outcome {
    /// Creates an outcome with one [`LogOutcome`] for each log, in the order of the check's logs.
    pub fn new(admitted: bool, logs: impl IntoIterator<Item = LogOutcome>) -> Self {
        let logs = logs.into_iter().collect();
        Self { admitted, timestamp: None, decided_by: DecidedBy::default(), logs }
    }

    /// Sets the timestamp of the decision, on the store's clock. Defaults to none.
    pub fn with_timestamp(mut self, timestamp: Duration) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Returns the outcome of each log, in the order of the check's logs.
    pub fn logs(&self) -> &[LogOutcome] {
        &self.logs
    }

    pub(crate) fn logs_mut(&mut self) -> &mut [LogOutcome] {
        &mut self.logs
    }

    /// Shows what remains once some of the logs of a check are settled at a cost; 0 cancels the request.
    pub(crate) fn settle(&mut self, check: &Check, cost: u32, has: impl Fn(&LogId) -> bool) {
        let logs = check.costs().zip(&mut self.logs).filter(|((log, _), _)| has(log));
        // Where nothing is reserved, nothing is settled.
        for ((log, reserved), outcome) in logs.filter(|((_, reserved), _)| *reserved > 0) {
            let Some(settled) = log.settled_cost(cost) else { continue };
            for (quota, state) in log.policy.quotas().iter().zip(&mut outcome.quotas) {
                let without = state.remaining.saturating_add(reserved);
                state.remaining = without.saturating_sub(settled).min(quota.limit());
                // The first entry that leaves frees no place above the limit, and an empty log has none.
                if settled > without || state.remaining == quota.limit() {
                    state.reset_us = 0;
                }
            }
        }
    }

    pub(crate) fn fits(&self) -> bool {
        !self.logs.iter().any(LogOutcome::denies)
    }
}

/// The result of a check for one log: the state of each quota of its policy, and of the ban of its
/// key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOutcome {
    quotas: SmallVec<[QuotaState; 1]>,
    is_read: bool,
    ban: BanState,
}

impl LogOutcome {
    /// Creates the outcome of a log without a ban, with the state of each of its policy's
    /// [`quotas`](Policy::quotas), in their order.
    pub fn new(quotas: impl IntoIterator<Item = QuotaState>) -> Self {
        Self { quotas: quotas.into_iter().collect(), is_read: true, ban: BanState::default() }
    }

    pub(crate) fn empty(policy: &Policy) -> Self {
        let state =
            |quota: &Quota| QuotaState { remaining: quota.limit(), ..QuotaState::default() };
        Self::new(policy.quotas().iter().map(state))
    }

    /// Creates the outcome of a log that was not read, because another log denies the request.
    pub(crate) fn unread(policy: &Policy) -> Self {
        Self { is_read: false, ..Self::empty(policy) }
    }

    /// Returns whether the log was read. If not, another log denies the request, and the states are
    /// those of an empty log.
    ///
    /// A denial that a `RedisStore` repeats from memory has read only the logs that deny the request, and one beside a
    /// Cluster node that is gone lacks the logs of that.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Returns the state of each of the policy's quotas after the decision, in their order.
    pub fn quotas(&self) -> &[QuotaState] {
        &self.quotas
    }

    /// Returns the ban of the log's key.
    pub fn ban(&self) -> BanState {
        self.ban
    }

    /// Returns whether a quota has no room for the request.
    pub fn is_full(&self) -> bool {
        self.quotas().iter().any(QuotaState::is_full)
    }

    /// Returns whether the log denies the request: it is full, or its key is banned.
    pub fn denies(&self) -> bool {
        self.ban.is_banned() || self.is_full()
    }

    /// Returns how long until the log admits the request, zero if it does now.
    pub(crate) fn wait_us(&self) -> u64 {
        let quotas = self.quotas().iter().map(|state| state.wait_us);
        quotas.max().unwrap_or(0).max(self.ban.remaining_us)
    }

    /// Returns the outcome with all its times shortened, as some time later. Places that have come free meanwhile are not added.
    pub(crate) fn after(&self, elapsed_us: u64) -> Self {
        let left = |us: u64| us.saturating_sub(elapsed_us);
        let mut later = self.clone();
        for state in &mut later.quotas {
            (state.wait_us, state.reset_us) = (left(state.wait_us), left(state.reset_us));
        }
        later.ban.remaining_us = left(later.ban.remaining_us);
        later
    }

    /// Makes the log's wait at least so long.
    pub(crate) fn wait_at_least(&mut self, wait_us: u64) {
        if let Some(state) = self.quotas.last_mut() {
            state.wait_us = state.wait_us.max(wait_us);
        }
    }

    pub(crate) fn quotas_mut(&mut self) -> &mut [QuotaState] {
        &mut self.quotas
    }

    /// Sets the ban of the log's key. Defaults to none.
    pub fn set_ban(&mut self, ban: BanState) {
        self.ban = ban;
    }

    /// Returns the longest window among the full quotas, zero if none is full.
    pub(crate) fn longest_full_window_us(&self, policy: &Policy) -> u64 {
        let quotas = policy.quotas().iter().zip(self.quotas());
        let full = quotas.filter(|(_, state)| state.is_full());
        full.map(|(quota, _)| quota.window_us()).max().unwrap_or(0)
    }
}

/// What decided about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store, whose logs all processes share.
    #[default]
    Store,
    /// A log in this process, during an outage or until the earlier decisions of this process are
    /// written back to the store.
    LocalLog,
    /// [`FailurePolicy::Open`](crate::FailurePolicy::Open): the request was admitted and not counted.
    FailurePolicy,
}

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
