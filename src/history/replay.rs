//! [`what_if`]: replays recorded decisions under another policy.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use super::record::Record;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::time::micros;
use crate::window::{BanRecord, BanState, Entry, Log, LogOutcome};

/// What a policy would have decided about a history, from [`what_if`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WhatIf {
    /// The counts of all requests.
    pub tally: Tally,
    /// The counts of each key, the most would-be denials first.
    pub keys: Vec<KeyTally>,
    /// The requests that would have been denied, in the order of their times.
    pub denials: Vec<ReplayedDenial>,
    /// How many of these denials each quota of the policy takes part in.
    pub quotas: Vec<(Quota, u64)>,
    /// How many of these denials a ban takes part in.
    pub bans: u64,
}

/// Counts of requests, recorded and replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// How many requests there were.
    pub requests: u64,
    /// How many were denied.
    pub denied: u64,
    /// How many would have been denied.
    pub would_deny: u64,
    /// How many were admitted and would have been denied.
    pub newly_denied: u64,
    /// How many were denied and would have been admitted.
    pub newly_admitted: u64,
}

/// The counts of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyTally {
    /// The recorded policy. Keys of several policies are counted separately.
    pub policy: Option<String>,
    /// The key, as it was recorded.
    pub key: String,
    /// The counts.
    pub tally: Tally,
}

/// A request that would have been denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayedDenial {
    /// When the request was decided about, since the Unix epoch.
    pub time: Duration,
    /// The recorded policy.
    pub policy: Option<String>,
    /// The key, as it was recorded.
    pub key: String,
    /// How many places the request would have taken.
    pub cost: u32,
    /// Whether the request was admitted in fact.
    pub was_admitted: bool,
    /// How long the request would have had to wait. It is one whole window if its cost is above a limit.
    pub retry_after: Duration,
}

impl Tally {
    fn count(&mut self, was_admitted: bool, is_admitted: bool) {
        self.requests += 1;
        self.denied += u64::from(!was_admitted);
        self.would_deny += u64::from(!is_admitted);
        self.newly_denied += u64::from(was_admitted && !is_admitted);
        self.newly_admitted += u64::from(!was_admitted && is_admitted);
    }
}

/// A key under replay.
#[derive(Default)]
struct Replayed {
    log: Log,
    ban: BanRecord,
    tally: Tally,
}

/// Replays a history under another policy, and returns which requests would have been denied.
///
/// It decides exactly as a store does, penalties included: each recorded request is a check at its time. A
/// penalty is applied without its jitter. Candidates are left out. Records may be in any order.
///
/// With several rules, replay one policy at a time: filter by [`Record::policy`] first. The records of
/// several policies have separate logs here, and `policy` decides about each of them, but
/// [`Record::admitted`] is the decision of all rules together.
///
/// The clients of the history knew what they were denied, and might have sent other requests under another
/// policy. So the result is exact for this traffic, and an estimate for that to come.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::history::{Record, what_if};
///
/// let at = |second| Record::new(Duration::from_secs(second), "alice", true);
/// let policy = "2/60s,3/10m".parse()?;
/// let replayed = what_if(&policy, [at(0), at(1), at(2), at(61), at(121)]);
///
/// let denied: Vec<u64> = replayed.denials.iter().map(|denial| denial.time.as_secs()).collect();
/// assert_eq!(denied, [2, 121]);
/// assert_eq!(replayed.denials[0].retry_after, Duration::from_secs(58));
/// assert_eq!(replayed.keys[0].tally.newly_denied, 2);
/// # Ok::<(), tower_sliding_window::PolicyError>(())
/// ```
#[must_use]
pub fn what_if(policy: &Policy, history: impl IntoIterator<Item = Record>) -> WhatIf {
    let mut history: Vec<Record> = history.into_iter().collect();
    history.sort_by_key(|record| record.time);
    let mut keys: HashMap<(Option<String>, String), Replayed> = HashMap::new();
    let quotas = policy.quotas().iter().map(|quota| (*quota, 0)).collect();
    let mut result = WhatIf { quotas, ..WhatIf::default() };
    for (number, record) in history.into_iter().enumerate() {
        let Record { time, policy: recorded, key, cost, admitted: was_admitted } = record;
        let replayed = keys.entry((recorded.clone(), key.clone())).or_default();
        // The low half of an identity is its jitter: none.
        let id = Uuid::from_u64_pair(number as u64, 0);
        let outcome = replayed.decide(policy, micros(time), id, cost);
        let is_admitted = !outcome.denies();
        replayed.tally.count(was_admitted, is_admitted);
        result.tally.count(was_admitted, is_admitted);
        if is_admitted {
            continue;
        }
        for ((_, denials), state) in result.quotas.iter_mut().zip(outcome.quotas()) {
            *denials += u64::from(state.is_full());
        }
        result.bans += u64::from(outcome.ban().is_banned());
        let retry_after = Duration::from_micros(outcome.wait_us());
        let policy = recorded;
        result.denials.push(ReplayedDenial { time, policy, key, cost, was_admitted, retry_after });
    }
    let tally = |((policy, key), replayed): (_, Replayed)| {
        let tally = replayed.tally;
        KeyTally { policy, key, tally }
    };
    result.keys = keys.into_iter().map(tally).collect();
    result.keys.sort_by_key(|it| {
        (
            Reverse(it.tally.would_deny),
            Reverse(it.tally.requests),
            it.policy.clone(),
            it.key.clone(),
        )
    });
    result
}

impl Replayed {
    fn decide(&mut self, policy: &Policy, now_us: u64, id: Uuid, cost: u32) -> LogOutcome {
        let state = |quota: Quota| self.log.state(now_us, quota, cost);
        let mut outcome = LogOutcome::of(policy, state);
        if let Some(penalty) = policy.get_penalty() {
            let full_us = outcome.longest_full_window_us(policy);
            let ban = BanState::of(&mut self.ban, now_us, id, (full_us, penalty), true);
            outcome.set_ban(ban);
        }
        if !outcome.denies() && cost > 0 {
            self.log.remove_expired(now_us, policy.longest_window_us());
            self.log.add(Entry { at_us: now_us, id }, cost, u32::MAX);
        }
        outcome
    }
}
