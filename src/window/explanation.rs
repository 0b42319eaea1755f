//! [`Explanation`]: what a log holds, and what that decides about the next request.

use std::time::Duration;

use uuid::Uuid;

use super::costs::Entry;
use super::log::Log;
use super::log_id::LogId;
use super::outcome::{DecidedBy, QuotaState};
use crate::quota::Quota;
use crate::time::micros;

/// How many entries of a window an explanation lists at most.
pub(crate) const MAX_LISTED: usize = 2_048;

/// The log of a key as it is, and what it decides about the next request, from
/// [`Limiter::explain`](crate::Limiter::explain).
///
/// With the feature `serde` it has `Serialize`: lengths of time and timestamps are whole microseconds, in fields whose
/// names end in `_us`. The key is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Explanation {
    /// The name of the policy.
    pub policy: String,
    /// How many places the request would take.
    pub cost: u32,
    /// Whether the request would be admitted.
    pub admitted: bool,
    /// How long to wait until the request fits, zero if it is admitted. A ban counts like a full log.
    #[cfg_attr(feature = "serde", serde(rename = "retry_after_us", serialize_with = "as_micros"))]
    pub retry_after: Duration,
    /// What would decide about the request, and was therefore read.
    pub decided_by: DecidedBy,
    /// When the log was read, on the store's clock, see
    /// [`Admitted::timestamp`](crate::Admitted::timestamp).
    #[cfg_attr(feature = "serde", serde(rename = "timestamp_us", serialize_with = "as_micros"))]
    pub timestamp: Duration,
    /// What each quota of the policy says, in the policy's order. All must have room.
    pub quotas: Vec<QuotaExplanation>,
    /// The ban record of the key, if the policy has a penalty.
    pub ban: Option<BanExplanation>,
}

/// What a log decides under one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QuotaExplanation {
    /// The quota. During an outage it is the share of this process.
    pub quota: Quota,
    /// How many places are taken in the window. A settlement or a lower limit can raise it above the
    /// limit. It then says no more than the list does.
    pub taken: u32,
    /// How many places are free.
    pub free: u32,
    /// How long until the request fits, zero if it does.
    #[cfg_attr(feature = "serde", serde(rename = "wait_us", serialize_with = "as_micros"))]
    pub wait: Duration,
    /// The admission that has to leave the window before the request fits. `None` if the request fits, or if the
    /// list is cut before that admission.
    pub waits_for: Option<Uuid>,
    /// The admissions in the window, oldest first. There are at most 2,048 in the list.
    pub admissions: Vec<LoggedAdmission>,
    /// How many places the newest admissions take that are not in the list, because it is full.
    pub not_listed: u32,
}

/// An admission in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LoggedAdmission {
    /// The identity of the request.
    pub id: Uuid,
    /// How many places the request takes.
    pub cost: u32,
    /// When the request was admitted, on the store's clock.
    #[cfg_attr(feature = "serde", serde(rename = "timestamp_us", serialize_with = "as_micros"))]
    pub timestamp: Duration,
    /// How long ago the request was admitted.
    #[cfg_attr(feature = "serde", serde(rename = "age_us", serialize_with = "as_micros"))]
    pub age: Duration,
    /// How long until the request leaves the window and its places are free.
    #[cfg_attr(feature = "serde", serde(rename = "leaves_in_us", serialize_with = "as_micros"))]
    pub leaves_in: Duration,
}

/// The ban record of a key: its ban, its strikes and its level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BanExplanation {
    /// The remaining length of the ban, zero if the key is not banned.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_us", serialize_with = "as_micros"))]
    pub remaining: Duration,
    /// The reason of the ban, empty if the key is not banned.
    pub reason: String,
    /// How long ago each strike was that counts, oldest first. There are at most 100.
    #[cfg_attr(feature = "serde", serde(rename = "strikes_us", serialize_with = "all_as_micros"))]
    pub strikes: Vec<Duration>,
    /// How many strikes within what time cause a ban. `None` if strikes are not counted.
    pub limit: Option<Quota>,
    /// For how long a denial is no new strike, because it lies in the episode of the last one.
    #[cfg_attr(feature = "serde", serde(rename = "episode_us", serialize_with = "as_micros"))]
    pub episode: Duration,
    /// The level: how many of the penalty's lengths the next ban skips.
    pub level: u32,
    /// The length of the next ban by strikes. `None` if strikes are not counted.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "next_ban_us", serialize_with = "some_as_micros")
    )]
    pub next_ban: Option<Duration>,
}

impl Explanation {
    /// Creates the explanation of a log from its admissions: each identity with its cost and its age, in
    /// any order. `timestamp` is the present time on the store's clock.
    ///
    /// For authors of a [`Store`](crate::store::Store).
    pub fn new(
        log: &LogId,
        cost: u32,
        timestamp: Duration,
        admissions: impl IntoIterator<Item = (Uuid, u32, Duration)>,
    ) -> Self {
        let now_us = micros(timestamp);
        let mut entries = Log::new();
        for (id, cost, age) in admissions {
            let at_us = now_us.saturating_sub(micros(age));
            entries.add(Entry { at_us, id }, log.kept_cost(cost));
        }
        entries.explain(log, now_us, cost)
    }

    /// Creates the explanation of a log from what each quota finds in it.
    pub(crate) fn of(log: &LogId, cost: u32, now_us: u64, quotas: Vec<QuotaExplanation>) -> Self {
        let retry_after = quotas.iter().map(|quota| quota.wait).max().unwrap_or_default();
        Self {
            policy: log.policy.name().to_owned(),
            cost,
            admitted: retry_after.is_zero(),
            retry_after,
            decided_by: DecidedBy::Store,
            timestamp: Duration::from_micros(now_us),
            quotas,
            ban: None,
        }
    }

    /// Sets the ban record of the key. Defaults to none.
    ///
    /// For authors of a [`Store`](crate::store::Store).
    pub fn with_ban(mut self, ban: BanExplanation) -> Self {
        self.retry_after = self.retry_after.max(ban.remaining);
        self.admitted = self.retry_after.is_zero();
        self.ban = Some(ban);
        self
    }
}

impl QuotaExplanation {
    /// Creates it from what a request would get, and the entries in the window, oldest first, each with its cost.
    pub(crate) fn new(
        now_us: u64,
        quota: Quota,
        state: QuotaState,
        entries: impl IntoIterator<Item = (Entry, u32)>,
    ) -> Self {
        let leaves_in_us = |at_us: u64| (at_us + quota.window_us()).saturating_sub(now_us);
        let logged = |(entry, cost): (Entry, u32)| LoggedAdmission {
            id: entry.id,
            cost,
            timestamp: Duration::from_micros(entry.at_us),
            age: Duration::from_micros(now_us.saturating_sub(entry.at_us)),
            leaves_in: Duration::from_micros(leaves_in_us(entry.at_us)),
        };
        let oldest = entries.into_iter().take(MAX_LISTED);
        let admissions: Vec<LoggedAdmission> = oldest.map(logged).collect();
        let listed = admissions.iter().map(|it| it.cost).fold(0, u32::saturating_add);
        let taken = match state.remaining {
            0 => listed.max(quota.limit()),
            free => quota.limit().saturating_sub(free),
        };
        let waits_for = admissions.iter().find(|it| it.leaves_in == state.wait());
        Self {
            quota,
            taken,
            free: state.remaining,
            wait: state.wait(),
            waits_for: waits_for.map(|it| it.id),
            admissions,
            not_listed: taken.saturating_sub(listed),
        }
    }
}

#[cfg(feature = "serde")]
fn as_micros<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(micros(*time))
}

#[cfg(feature = "serde")]
fn some_as_micros<S: serde::Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&time.map(micros), serializer)
}

#[cfg(feature = "serde")]
fn all_as_micros<S: serde::Serializer>(
    times: &[Duration],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times.iter().map(|time| micros(*time)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// After a lower limit, or a settlement.
    #[test]
    fn more_than_the_limit_can_be_taken() {
        let policy = Policy::new("user").quota(Quota::per_minute(2));
        let log = LogId::new(policy.into(), "alice");
        let admissions =
            (1..4_u32).map(|it| (Uuid::from_u128(it.into()), 1, it * Duration::from_secs(1)));
        let explained = Explanation::new(&log, 1, Duration::from_secs(100), admissions);
        let quota = &explained.quotas[0];
        assert_eq!((quota.taken, quota.free, quota.not_listed), (3, 0, 0));
        assert_eq!(quota.waits_for, Some(Uuid::from_u128(2)), "two of them have to leave");
    }
}
