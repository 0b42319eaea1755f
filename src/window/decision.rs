//! [`Decision`]: what became of a request, and how its windows stand.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use super::check::{Check, LogId};
use super::outcome::{BanState, DecidedBy, LogOutcome, Outcome, QuotaState};
use crate::policy::Policy;
use crate::quota::Quota;

/// Whether a request was admitted.
///
/// The layer puts it into the extensions of the requests it lets pass, except of those that it
/// does not decide on: skipped requests, and requests that no rule applies to.
///
/// A decision that is not looked at limits nothing, so the compiler warns of one:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use tower_sliding_window::{Limiter, StoreError};
///
/// async fn send(limiter: &Limiter) -> Result<(), StoreError> {
///     limiter.check("receiver-17").await?; // and the message is sent whatever the decision says
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a denied request is held back only if the caller looks at the decision"]
pub enum Decision {
    /// Every window recorded the request.
    Admitted(Admitted),
    /// At least one window was full, and none recorded the request.
    Denied(Denied),
}

impl Decision {
    pub(crate) fn new(check: Arc<Check>, outcome: Outcome) -> Self {
        let admitted = outcome.admitted;
        let usage = Usage { check, outcome };
        if admitted { Self::Admitted(Admitted { usage }) } else { Self::Denied(Denied { usage }) }
    }

    /// Tells whether the request was admitted.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }

    /// Returns the admission, if it is one.
    #[must_use]
    pub fn admitted(&self) -> Option<&Admitted> {
        match self {
            Self::Admitted(admitted) => Some(admitted),
            Self::Denied(_) => None,
        }
    }

    /// Returns the denial, if it is one.
    #[must_use]
    pub fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Admitted(_) => None,
            Self::Denied(denied) => Some(denied),
        }
    }

    /// Returns who decided: the store, or what stands in for it while it does not answer.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.usage().outcome.decided_by
    }

    /// Returns how the windows stood after the decision.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        match self {
            Self::Admitted(Admitted { usage }) | Self::Denied(Denied { usage }) => usage,
        }
    }
}

/// An admission, which can be cancelled.
#[derive(Clone, Debug)]
pub struct Admitted {
    usage: Usage,
}

impl Admitted {
    /// Returns how many more requests would be admitted now: the least that any quota has left.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.usage.remaining()
    }

    /// Returns the identity under which the request was counted.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.usage.check.id
    }

    /// Returns the timestamp the request was counted with, on the store's clock.
    ///
    /// It counts from the Unix epoch in Redis, and from the store's creation in process. A
    /// [`Limiter`](crate::Limiter) always asks for it; a layer does not, and may not be told.
    #[must_use]
    pub fn timestamp(&self) -> Option<Duration> {
        self.usage.outcome.timestamp
    }

    /// Returns how the windows stood after the request was recorded.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn check(&self) -> &Arc<Check> {
        &self.usage.check
    }
}

/// A denial, and how long it lasts.
#[derive(Clone, Debug)]
pub struct Denied {
    usage: Usage,
}

impl Denied {
    /// Returns how long until the request could be admitted, if nobody else takes the place.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.usage.retry_after()
    }

    /// Returns when the request was denied, on the store's clock, see [`Admitted::timestamp`].
    #[must_use]
    pub fn timestamp(&self) -> Option<Duration> {
        self.usage.outcome.timestamp
    }

    /// Returns the names of the policies that were violated, each once.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        let mut named: SmallVec<[&str; 2]> = SmallVec::new();
        let denying = self.usage.logs().filter(|(_, outcome)| outcome.denies());
        denying.map(|(log, _)| log.policy.name()).filter(move |name| {
            let is_new = !named.contains(name);
            if is_new {
                named.push(name);
            }
            is_new
        })
    }

    /// Returns how the logs stood.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// How the logs of a request stand.
#[derive(Clone, Debug)]
pub struct Usage {
    check: Arc<Check>,
    outcome: Outcome,
}

impl Usage {
    pub(crate) fn new(check: Arc<Check>, outcome: Outcome) -> Self {
        Self { check, outcome }
    }

    /// Takes the request itself out, whose places were given back.
    pub(crate) fn give_back(&mut self) {
        let cost = self.check.cost;
        for (log, outcome) in self.check.logs.iter().zip(self.outcome.logs_mut()) {
            let quotas = log.policy.quotas_and_candidates();
            for (quota, state) in quotas.zip(outcome.states_mut()) {
                state.remaining = state.remaining.saturating_add(cost).min(quota.limit());
            }
        }
    }

    /// Returns how many more requests would be admitted: the least that any quota has left.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.quotas().map(|(_, _, state)| state.remaining()).min().unwrap_or(0)
    }

    /// Returns how long until a request that was denied, or looked at by
    /// [`Limiter::peek`](crate::Limiter::peek), could be admitted.
    ///
    /// Zero if it could be now, and for an admission, also one that took the last place: the check
    /// does not ask how long the next request would wait. A ban counts as a full log does.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let waits = self.outcome.logs().iter().map(LogOutcome::wait_us);
        Duration::from_micros(waits.max().unwrap_or(0))
    }

    /// Returns how long the key is banned, by the policy whose ban is longest; nothing if it is not.
    #[must_use]
    pub fn banned_for(&self) -> Option<Duration> {
        let longest = self.outcome.logs().iter().map(|log| log.ban().remaining()).max();
        longest.filter(|remaining| !remaining.is_zero())
    }

    /// Returns each log with what the store says of it, in the order of the rules.
    pub fn logs(&self) -> impl Iterator<Item = (&LogId, &LogOutcome)> {
        self.check.logs.iter().zip(self.outcome.logs())
    }

    /// Returns each log whose key is banned, or for which this request was a strike.
    pub fn bans(&self) -> impl Iterator<Item = (&LogId, BanState)> {
        let bans = self.logs().map(|(log, outcome)| (log, outcome.ban()));
        bans.filter(|(_, ban)| *ban != BanState::default())
    }

    /// Returns each enforced quota with its policy and how it stands.
    pub fn quotas(&self) -> impl Iterator<Item = (&Policy, Quota, QuotaState)> {
        self.logs().flat_map(|(log, outcome)| paired(log, log.policy.quotas(), outcome.quotas()))
    }

    /// Returns each candidate with its policy and how it stands.
    ///
    /// A candidate would have denied the request if it [is full](QuotaState::is_full).
    pub fn candidates(&self) -> impl Iterator<Item = (&Policy, Quota, QuotaState)> {
        self.logs()
            .flat_map(|(log, outcome)| paired(log, log.policy.candidates(), outcome.candidates()))
    }
}

fn paired<'a>(
    log: &'a LogId,
    quotas: &'a [Quota],
    states: &'a [QuotaState],
) -> impl Iterator<Item = (&'a Policy, Quota, QuotaState)> {
    quotas.iter().zip(states).map(move |(quota, state)| (&*log.policy, *quota, *state))
}
