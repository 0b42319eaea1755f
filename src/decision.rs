//! [`Decision`]: what became of a request, and how its windows stand.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::{BanState, Check, DecidedBy, Partition, QuotaState, Verdict};

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
    pub(crate) fn new(check: Arc<Check>, verdict: Verdict) -> Self {
        let admitted = verdict.admitted;
        let usage = Usage { check, verdict };
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
        self.usage().verdict.decided_by
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

    /// Returns the stamp the request was counted with, on the store's clock.
    ///
    /// It counts from the Unix epoch in Redis, and from the store's creation in process. A
    /// [`Limiter`](crate::Limiter) always asks for it; a layer does not, and may not be told.
    #[must_use]
    pub fn stamp(&self) -> Option<Duration> {
        self.usage.verdict.at_us.map(Duration::from_micros)
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

    /// Returns when the request was denied, on the store's clock, see [`Admitted::stamp`].
    #[must_use]
    pub fn stamp(&self) -> Option<Duration> {
        self.usage.verdict.at_us.map(Duration::from_micros)
    }

    /// Returns the names of the policies that were violated, each once.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        let mut named: SmallVec<[&str; 2]> = SmallVec::new();
        self.violations().filter(move |name| {
            let is_new = !named.contains(name);
            if is_new {
                named.push(name);
            }
            is_new
        })
    }

    /// Returns the name of the policy of each log that denies.
    fn violations(&self) -> impl Iterator<Item = &str> {
        let banned = |place: usize| {
            self.usage.verdict.bans.iter().any(|ban| ban.partition == place && ban.wait_us > 0)
        };
        self.usage
            .policies()
            .enumerate()
            .filter(move |(place, (_, quotas, _))| {
                banned(*place) || quotas.iter().any(|state| state.wait_us > 0)
            })
            .map(|(_, (policy, _, _))| policy.name())
    }

    /// Returns how the windows stood.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// How the windows of a request stand.
#[derive(Clone, Debug)]
pub struct Usage {
    check: Arc<Check>,
    verdict: Verdict,
}

impl Usage {
    pub(crate) fn new(check: Arc<Check>, verdict: Verdict) -> Self {
        Self { check, verdict }
    }

    /// Takes the request itself out, whose places were given back.
    pub(crate) fn give_back(&mut self) {
        let judged = self.check.partitions.iter().flat_map(|log| log.policy.judged());
        for (quota, state) in judged.zip(&mut self.verdict.states) {
            state.remaining = state.remaining.saturating_add(self.check.cost).min(quota.limit());
        }
    }

    /// Returns how many more requests would be admitted: the least that any quota has left.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.quotas().map(|(_, _, state)| state.remaining).min().unwrap_or(0)
    }

    /// Returns how long until a request that was denied, or looked at by
    /// [`Limiter::peek`](crate::Limiter::peek), could be admitted.
    ///
    /// Zero if it could be now, and for an admission, also one that took the last place: the store
    /// is not asked how long the next request would wait. A ban counts as a full window does.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let waits = self.quotas().map(|(_, _, state)| state.wait_us);
        let bans = self.verdict.bans.iter().map(|ban| ban.wait_us);
        Duration::from_micros(waits.chain(bans).max().unwrap_or(0))
    }

    /// Returns each policy with a penalty whose key is banned, or for which this request was a strike.
    pub fn bans(&self) -> impl Iterator<Item = (&Partition, BanState)> {
        let partition = |ban: &BanState| Some((self.check.partitions.get(ban.partition)?, *ban));
        self.verdict.bans.iter().filter_map(partition)
    }

    /// Returns how long the key is banned, by whichever policy that is longest; nothing if it is not.
    #[must_use]
    pub fn banned_for(&self) -> Option<Duration> {
        let longest = self.verdict.bans.iter().map(|ban| ban.wait_us).max();
        longest.filter(|wait_us| *wait_us > 0).map(Duration::from_micros)
    }

    /// Returns each enforced quota with its policy and how it stands.
    pub fn quotas(&self) -> impl Iterator<Item = (&Policy, Quota, QuotaState)> {
        self.policies().flat_map(|(policy, states, _)| paired(policy, policy.quotas(), states))
    }

    /// Returns each candidate with its policy and how it stands.
    ///
    /// A candidate would have refused the request if its `wait_us` is not zero.
    pub fn candidates(&self) -> impl Iterator<Item = (&Policy, Quota, QuotaState)> {
        self.policies().flat_map(|(policy, _, states)| paired(policy, policy.candidates(), states))
    }

    /// Returns each policy with the states of its quotas and of its candidates.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&Policy, &[QuotaState], &[QuotaState])> {
        let mut states = &self.verdict.states[..];
        let mut take = move |count: usize| {
            let (own, rest) = states.split_at(count.min(states.len()));
            states = rest;
            own
        };
        self.check.partitions.iter().map(move |partition| {
            let policy = &*partition.policy;
            (policy, take(policy.quotas().len()), take(policy.candidates().len()))
        })
    }
}

fn paired<'a>(
    policy: &'a Policy,
    quotas: &'a [Quota],
    states: &'a [QuotaState],
) -> impl Iterator<Item = (&'a Policy, Quota, QuotaState)> {
    quotas.iter().zip(states).map(move |(quota, state)| (policy, *quota, *state))
}
