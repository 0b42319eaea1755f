//! [`Decision`]: whether a request was admitted, and the state of its logs.

use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use super::ban_record::Strike;
use super::check::Check;
use super::log_id::LogId;
use super::outcome::{BanState, DecidedBy, LogOutcome, Outcome, QuotaState};
use crate::policy::{Counts, Policy};
use crate::quota::Quota;
use crate::time::{micros, random_part};

/// Whether a request was admitted.
///
/// The layer inserts it into the extensions of each request that it forwards, unless there was no
/// decision: for a skipped request, and for one that no rule applies to.
///
/// A decision that the caller ignores limits nothing, so the compiler warns about it:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use tower_sliding_window::{Limiter, StoreError};
///
/// async fn send(limiter: &Limiter) -> Result<(), StoreError> {
///     limiter.check("receiver-17").await?; // the message is sent even if it was denied
///     Ok(())
/// }
/// ```
///
/// The compiler does not warn about `is_ok`, which is true for a denial too:
///
/// ```
/// # use tower_sliding_window::{Decision, Limiter};
/// # fn send(_: &str) {}
/// # async fn example(limiter: &Limiter) {
/// // Wrong: sends what is denied.
/// if limiter.check("receiver-17").await.is_ok() {
///     send("receiver-17");
/// }
/// // Right: sends what is admitted.
/// if let Ok(Decision::Admitted(_)) = limiter.check("receiver-17").await {
///     send("receiver-17");
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the caller must hold back a denied request"]
pub enum Decision {
    /// Every log recorded the request.
    Admitted(Admitted),
    /// A log was full or a key banned. No log recorded the request.
    Denied(Denied),
}

impl Decision {
    /// Creates the decision on a check from its outcome.
    pub(crate) fn new(check: Check, outcome: Outcome) -> Self {
        let is_admitted = outcome.admitted;
        let usage = Usage::new(check, outcome);
        match is_admitted {
            true => Self::Admitted(Admitted { usage }),
            false => Self::Denied(Denied { usage }),
        }
    }

    /// Returns whether the request was admitted.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }

    /// Returns the admission, or `None` if the request was denied.
    pub fn admitted(&self) -> Option<&Admitted> {
        match self {
            Self::Admitted(admitted) => Some(admitted),
            Self::Denied(_) => None,
        }
    }

    /// Returns the denial, or `None` if the request was admitted.
    pub fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Admitted(_) => None,
            Self::Denied(denied) => Some(denied),
        }
    }

    /// Returns what decided: the store, or its replacement during an outage.
    pub fn decided_by(&self) -> DecidedBy {
        self.usage().decided.outcome.decided_by
    }

    /// Returns the state of the logs after the decision.
    pub fn usage(&self) -> &Usage {
        match self {
            Self::Admitted(Admitted { usage }) | Self::Denied(Denied { usage }) => usage,
        }
    }
}

/// An admission, which can be cancelled.
#[derive(Clone, Debug)]
pub struct Admitted {
    pub(super) usage: Usage,
}

impl Admitted {
    /// Returns how many more requests fit now: the lowest remaining number of all quotas.
    pub fn remaining(&self) -> u32 {
        self.usage.remaining()
    }

    /// Returns the identity of the request.
    pub fn id(&self) -> Uuid {
        self.usage.check().id
    }

    /// Returns the timestamp of the request in the log, on the store's clock.
    ///
    /// The clock counts from the Unix epoch in Redis, and from the store's creation in process. The local log that
    /// decides in an outage of Redis has a clock of the second kind. An admission by
    /// [`FailurePolicy::Open`](crate::FailurePolicy::Open) has none.
    pub fn timestamp(&self) -> Option<Duration> {
        self.usage.decided.outcome.timestamp
    }

    /// Returns the state of the logs after they recorded the request.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn check(&self) -> &Check {
        self.usage.check()
    }
}

/// A denial, with the time to wait.
#[derive(Clone, Debug)]
pub struct Denied {
    pub(super) usage: Usage,
}

impl Denied {
    /// Returns how long to wait until the request fits, if no other request of its keys is admitted
    /// meanwhile.
    ///
    /// That is not known if a policy denies that counts requests in flight, see
    /// [`has_known_wait`](Self::has_known_wait).
    ///
    /// It is exact to the microsecond, so round up where another unit is needed. `as_millis` rounds down,
    /// and a client that waits so long is denied again:
    ///
    /// ```
    /// # let retry_after = std::time::Duration::from_micros(1_001);
    /// let milliseconds = retry_after.as_micros().div_ceil(1_000);
    /// # assert_eq!(milliseconds, 2);
    /// ```
    pub fn retry_after(&self) -> Duration {
        self.usage.retry_after()
    }

    /// Returns the time of the denial, on the store's clock, see [`Admitted::timestamp`].
    pub fn timestamp(&self) -> Option<Duration> {
        self.usage.decided.outcome.timestamp
    }

    /// Returns whether time alone ends the denial, so that [`Denied::retry_after`] is exact.
    ///
    /// It does not if a policy that counts requests [in flight](Policy::in_flight) denies: a place is free as soon
    /// as another request is over, which may be sooner or much later than [`Denied::retry_after`] says. That is when
    /// the first lease ends, if nobody renews it, or, after a wait, when the caller would have looked again. Try
    /// again after a pause that grows.
    pub fn has_known_wait(&self) -> bool {
        let is_unknown = |(log, outcome): (&LogId, &LogOutcome)| {
            log.policy.counts() == Counts::InFlight && outcome.is_full()
        };
        !self.usage.logs().any(is_unknown)
    }

    pub(crate) fn known_wait(&self) -> Option<Duration> {
        self.has_known_wait().then(|| self.retry_after())
    }

    /// Returns the names of the policies that deny the request, each once.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        let mut names: SmallVec<[&str; 2]> = SmallVec::new();
        let denying = self.usage.logs().filter(|(_, outcome)| outcome.denies());
        denying.map(|(log, _)| log.policy.name()).filter(move |name| {
            let is_new = !names.contains(name);
            if is_new {
                names.push(name);
            }
            is_new
        })
    }

    /// Returns the state of the logs.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn check(&self) -> &Check {
        self.usage.check()
    }

    /// Returns the denial as it would be if the request had some of its logs only.
    pub(crate) fn part(&self, has: impl Fn(usize) -> bool) -> Self {
        Self { usage: self.usage.part(has) }
    }

    /// Makes the waits longer by one random part of a time.
    pub(crate) fn delayed(mut self, longest: Duration) -> Self {
        if !longest.is_zero() {
            let later_us = micros(random_part(longest));
            let states =
                self.usage.decided.outcome.logs_mut().iter_mut().flat_map(LogOutcome::quotas_mut);
            for state in states.filter(|state| state.is_full()) {
                state.wait_us = state.wait_us.saturating_add(later_us);
            }
        }
        self
    }

    pub(crate) fn outcome(&self) -> &Outcome {
        &self.usage.decided.outcome
    }
}

/// The state of the logs of a check.
#[derive(Clone, Debug)]
pub struct Usage {
    pub(super) decided: Box<Decided>,
}

/// A check and its outcome.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) check: Check,
    pub(super) outcome: Outcome,
}

impl Usage {
    pub(crate) fn new(check: Check, outcome: Outcome) -> Self {
        Self { decided: Box::new(Decided { check, outcome }) }
    }

    pub(crate) fn check(&self) -> &Check {
        &self.decided.check
    }

    /// Returns the state of some logs, by their index in the check.
    pub(crate) fn part(&self, has: impl Fn(usize) -> bool) -> Self {
        let Decided { check, outcome } = &*self.decided;
        let logs = outcome.logs().iter().enumerate().filter(|(index, _)| has(*index));
        let mut part = Outcome::new(outcome.admitted, logs.map(|(_, log)| log.clone()));
        (part.timestamp, part.decided_by) = (outcome.timestamp, outcome.decided_by);
        Self::new(check.part(has), part)
    }

    /// Lets some time pass. A reset that has come due counts as due now, for a later request may have taken the place.
    pub(crate) fn age(&mut self, time: Duration) {
        let left = |us: u64| us.saturating_sub(micros(time));
        let logs = self.decided.outcome.logs_mut().iter_mut();
        for state in logs.flat_map(LogOutcome::quotas_mut) {
            state.wait_us = left(state.wait_us);
            state.reset_us = left(state.reset_us).max(state.reset_us.min(1));
        }
    }

    pub(crate) fn is_denied(&self) -> bool {
        !self.decided.outcome.admitted
    }

    /// Shows what remains once some of the logs are settled at a cost; 0 cancels the request.
    pub(crate) fn settle(&mut self, cost: u32, has: impl Fn(&LogId) -> bool) {
        let Decided { check, outcome } = &mut *self.decided;
        outcome.settle(check, cost, has);
    }

    /// Returns how many more requests fit: the lowest remaining number of all quotas.
    pub fn remaining(&self) -> u32 {
        self.quotas().map(|(_, _, state)| state.remaining()).min().unwrap_or(0)
    }

    /// Returns how long to wait until the request of a denial or of
    /// [`Limiter::peek`](crate::Limiter::peek) fits: zero if it fits now.
    ///
    /// It is zero for every admission, even one that took the last place: a check does not compute
    /// the wait of the next request. A ban counts like a full log.
    pub fn retry_after(&self) -> Duration {
        let waits = self.decided.outcome.logs().iter().map(LogOutcome::wait_us);
        Duration::from_micros(waits.max().unwrap_or(0))
    }

    /// Returns the remaining length of the longest ban, or `None` if no key is banned.
    pub fn banned_for(&self) -> Option<Duration> {
        let remaining = self.decided.outcome.logs().iter().map(|log| log.ban().remaining_us);
        remaining.max().filter(|us| *us > 0).map(Duration::from_micros)
    }

    /// Returns each log with its outcome, in the order of the rules.
    pub fn logs(&self) -> impl Iterator<Item = (&LogId, &LogOutcome)> {
        self.decided.check.logs.iter().zip(self.decided.outcome.logs())
    }

    /// Returns each log whose key is banned, or under whose policy this request was a strike.
    pub fn bans(&self) -> impl Iterator<Item = (&LogId, BanState)> {
        let bans = self.logs().map(|(log, outcome)| (log, outcome.ban()));
        bans.filter(|(_, ban)| ban.is_banned() || ban.strike() != Strike::None)
    }

    /// Returns each quota with its policy and its state.
    pub fn quotas(&self) -> impl Iterator<Item = (&Policy, Quota, QuotaState)> {
        self.logs().flat_map(|(log, outcome)| {
            let states = log.policy.quotas().iter().zip(outcome.quotas());
            states.map(|(quota, state)| (&*log.policy, *quota, *state))
        })
    }
}
