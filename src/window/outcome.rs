//! [`Outcome`]: what a store answers to a check.

use std::time::Duration;

use smallvec::SmallVec;

use super::ban_record::Strike;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::time::micros;

/// What a store answers to a [`Check`](super::Check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Whether every log recorded the request. Otherwise none did.
    pub admitted: bool,
    /// When the store decided, on its own clock, since its epoch. A store may leave it out if the
    /// check does not ask for it.
    pub timestamp: Option<Duration>,
    /// What decided. Defaults to the store.
    pub decided_by: DecidedBy,
    logs: SmallVec<[LogOutcome; 1]>,
    /// What became of a denied request in logs that had recorded it.
    pub(crate) rollback: Rollback,
    /// Whether it is a denial from a cache, and not the store's answer to this check.
    pub(crate) remembered: bool,
}

impl Outcome {
    /// Creates the outcome of a decision by the store, with what it says of each log, in the order
    /// of the check's logs.
    #[must_use]
    pub fn new(admitted: bool, logs: impl IntoIterator<Item = LogOutcome>) -> Self {
        Self {
            admitted,
            timestamp: None,
            decided_by: DecidedBy::default(),
            logs: logs.into_iter().collect(),
            rollback: Rollback::default(),
            remembered: false,
        }
    }

    /// Sets when the store decided, on its own clock. Defaults to none.
    #[must_use]
    pub fn with_timestamp(mut self, timestamp: Duration) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Returns what the store says of each log, in the order of the check's logs.
    #[must_use]
    pub fn logs(&self) -> &[LogOutcome] {
        &self.logs
    }

    pub(crate) fn logs_mut(&mut self) -> &mut [LogOutcome] {
        &mut self.logs
    }

    /// Tells whether no log has a reason to deny the request.
    pub(crate) fn fits(&self) -> bool {
        !self.logs.iter().any(LogOutcome::denies)
    }
}

/// What a store says of one log of a check: how each quota and candidate of its policy stands, and
/// the ban of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOutcome {
    /// The quotas and then the candidates: one allocation at most for both.
    states: SmallVec<[QuotaState; 2]>,
    quotas: usize,
    ban: BanState,
}

impl LogOutcome {
    /// Creates the outcome of a log without a ban, with the state of each of its policy's
    /// [`quotas`](Policy::quotas), in their order.
    #[must_use]
    pub fn new(quotas: impl IntoIterator<Item = QuotaState>) -> Self {
        let states: SmallVec<_> = quotas.into_iter().collect();
        Self { quotas: states.len(), states, ban: BanState::default() }
    }

    /// Sets the state of each of the policy's [`candidates`](Policy::candidates), in their order.
    /// Defaults to none.
    #[must_use]
    pub fn with_candidates(mut self, candidates: impl IntoIterator<Item = QuotaState>) -> Self {
        self.states.truncate(self.quotas);
        self.states.extend(candidates);
        self
    }

    /// Sets the ban of the log's key. Defaults to none.
    #[must_use]
    pub fn with_ban(mut self, ban: BanState) -> Self {
        self.ban = ban;
        self
    }

    /// Creates the outcome of a log by the state of each quota and candidate of its policy.
    pub(crate) fn of(policy: &Policy, state: impl FnMut(Quota) -> QuotaState) -> Self {
        let states = policy.quotas_and_candidates().map(state).collect();
        Self { states, quotas: policy.quotas().len(), ban: BanState::default() }
    }

    /// Creates the outcome of a log by states that the policy's quotas and candidates have.
    pub(crate) fn with_states(policy: &Policy, states: SmallVec<[QuotaState; 2]>) -> Self {
        Self { quotas: policy.quotas().len().min(states.len()), states, ban: BanState::default() }
    }

    /// Creates the outcome of a log that nothing is known of: it holds nothing.
    pub(crate) fn empty(policy: &Policy) -> Self {
        Self::of(policy, |quota| QuotaState { remaining: quota.limit(), ..QuotaState::default() })
    }

    /// Returns how each of the policy's quotas stands after the decision, in their order.
    #[must_use]
    pub fn quotas(&self) -> &[QuotaState] {
        &self.states[..self.quotas]
    }

    /// Returns how each of the policy's candidates stands after the decision, in their order. Its
    /// wait is as it was before.
    #[must_use]
    pub fn candidates(&self) -> &[QuotaState] {
        &self.states[self.quotas..]
    }

    /// Returns the ban of the log's key.
    #[must_use]
    pub fn ban(&self) -> BanState {
        self.ban
    }

    /// Tells whether a quota has no room for the request. A candidate does not count.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.quotas().iter().any(QuotaState::is_full)
    }

    /// Tells whether the log is a reason to deny the request: it is full, or its key is banned.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.ban.is_banned() || self.is_full()
    }

    /// Returns how long until the log admits the request: zero if it does now.
    pub(crate) fn wait_us(&self) -> u64 {
        let quotas = self.quotas().iter().map(|state| state.wait_us);
        quotas.max().unwrap_or(0).max(self.ban.remaining_us)
    }

    /// Returns the states of the quotas and then of the candidates.
    pub(crate) fn states(&self) -> &[QuotaState] {
        &self.states
    }

    pub(crate) fn states_mut(&mut self) -> &mut [QuotaState] {
        &mut self.states
    }

    pub(crate) fn set_ban(&mut self, ban: BanState) {
        self.ban = ban;
    }

    /// Returns the length of the longest full quota, zero if none is full.
    pub(crate) fn longest_full_us(&self, policy: &Policy) -> u64 {
        let quotas = policy.quotas().iter().zip(self.quotas());
        let full = quotas.filter(|(_, state)| state.is_full());
        full.map(|(quota, _)| quota.window_us()).max().unwrap_or(0)
    }
}

/// How one quota stands at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaState {
    pub(crate) remaining: u32,
    pub(crate) wait_us: u64,
    pub(crate) reset_us: u64,
}

impl QuotaState {
    /// Creates a state from its parts, each as the method of its name returns it. Lengths of time
    /// are cut to whole microseconds.
    #[must_use]
    pub fn new(remaining: u32, wait: Duration, reset: Duration) -> Self {
        Self { remaining, wait_us: micros(wait), reset_us: micros(reset) }
    }

    /// Returns how many more places the log has under this quota.
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns how long until there is room for the cost that was asked for: zero if there is room
    /// now.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        Duration::from_micros(self.wait_us)
    }

    /// Returns how long until the oldest entry leaves the quota's window: zero if the window holds
    /// none, or if the check did not ask for it.
    #[must_use]
    pub const fn reset(&self) -> Duration {
        Duration::from_micros(self.reset_us)
    }

    /// Tells whether there is no room for the cost that was asked for.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.wait_us > 0
    }

    /// Returns the state so much later, if nothing changes meanwhile.
    pub(crate) fn after(&self, elapsed_us: u64) -> Self {
        Self {
            remaining: self.remaining,
            wait_us: self.wait_us.saturating_sub(elapsed_us),
            reset_us: self.reset_us.saturating_sub(elapsed_us),
        }
    }
}

/// How a key stands with a policy's [`Penalty`](crate::Penalty). Defaults to no ban and no strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanState {
    pub(crate) remaining_us: u64,
    pub(crate) strike: Strike,
}

impl BanState {
    /// Creates a state from how long the ban goes on, zero if there is none, and what the request
    /// was to the key's ban record.
    #[must_use]
    pub fn new(remaining: Duration, strike: Strike) -> Self {
        Self { remaining_us: micros(remaining), strike }
    }

    /// Returns how long the ban goes on: zero if there is none.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        Duration::from_micros(self.remaining_us)
    }

    /// Returns what the request was to the key's ban record.
    #[must_use]
    pub const fn strike(&self) -> Strike {
        self.strike
    }

    /// Tells whether the key is banned.
    #[must_use]
    pub const fn is_banned(&self) -> bool {
        self.remaining_us > 0
    }
}

/// What became of a denied request in logs that had recorded it before another one denied it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "one server needs none"))]
pub(crate) enum Rollback {
    /// No log had recorded it.
    #[default]
    NotNeeded,
    /// It was removed from them again.
    Done,
    /// It may be there still, and has to be cancelled.
    Unfinished,
}

/// What decided on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store, from the logs that all its users share.
    #[default]
    Store,
    /// A log in this process, because the store did not answer or does not know yet what was decided
    /// here before.
    LocalLog,
    /// The failure policy `Open`: the request was admitted and not counted.
    FailurePolicy,
}
