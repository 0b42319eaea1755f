//! Reads the replies of the scripts for limits and bans.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use super::requests::AdmitReply;
use crate::error::StoreError;
use crate::policy::Penalty;
use crate::redis::{malformed, read};
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, QuotaState, Strike};

/// The number of integers before those of the quotas in a reply of `admit_all.lua`.
const HEAD: usize = 2;
const PER_QUOTA: usize = 3;
const PER_PENALTY: usize = 2;

pub(super) fn admit(reply: &AdmitReply, check: &Check) -> Outcome {
    let AdmitReply { decision, at_us, reset_us } = *reply;
    let state = QuotaState {
        remaining: u32::try_from(decision).unwrap_or(0),
        wait_us: if decision < 0 { decision.unsigned_abs() } else { 0 },
        reset_us,
    };
    let mut logs = SmallVec::new();
    for log in &check.logs {
        logs.push(LogOutcome::of(&log.policy, |_| state));
    }
    let mut outcome = Outcome::from_logs(decision >= 0, logs);
    outcome.timestamp = at_us.map(Duration::from_micros);
    outcome
}

pub(super) fn penalties(logs: &[LogId]) -> impl Iterator<Item = (usize, &Penalty)> {
    let logs = logs.iter().enumerate();
    logs.filter_map(|(index, log)| Some((index, log.policy.get_penalty()?)))
}

pub(super) fn admit_all(reply: &Value, check: &Check) -> Result<Outcome, StoreError> {
    let quotas: usize = check.logs.iter().map(|log| log.policy.quotas_and_candidates().len()).sum();
    let count = HEAD + PER_QUOTA * quotas + PER_PENALTY * penalties(&check.logs).count();
    let unexpected = || malformed(format!("expected {count} integers from admit_all.lua"));
    let Value::Array(items) = reply else { return Err(unexpected()) };
    let mut items = items.iter();
    let mut next = || match items.next() {
        Some(Value::Int(integer)) => u64::try_from(*integer).map_err(|_| unexpected()),
        _ => Err(unexpected()),
    };
    let (admitted, at_us) = (next()? == 1, next()?);
    let mut logs = smallvec::SmallVec::<[LogOutcome; 1]>::new();
    for log in &check.logs {
        let state = |_| {
            Ok(QuotaState {
                remaining: u32::try_from(next()?).unwrap_or(u32::MAX),
                wait_us: next()?,
                reset_us: next()?,
            })
        };
        let states = log.policy.quotas_and_candidates().map(state);
        logs.push(LogOutcome::with_states(&log.policy, states.collect::<Result<_, StoreError>>()?));
    }
    for (index, _) in penalties(&check.logs) {
        let remaining_us = next()?;
        let strike = match next()? {
            0 => Strike::None,
            1 => Strike::Counted,
            _ => Strike::Banned,
        };
        logs[index].set_ban(BanState { remaining_us, strike });
    }
    Ok(Outcome::from_logs(admitted, logs).with_timestamp(Duration::from_micros(at_us)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BanOutcome {
    Imposed,
    /// The call imposes no ban, or a present ban ends at the same time or later.
    NotImposed,
    /// The ban was lifted after this process saw it.
    LiftedSince,
}

pub(super) struct BanReply {
    pub(super) remaining: Duration,
    pub(super) outcome: BanOutcome,
    pub(super) reason: String,
    pub(super) timestamp: Duration,
}

pub(super) fn ban(reply: &Value) -> Result<BanReply, StoreError> {
    let (wait_us, outcome, reason, at_us): (u64, i64, Vec<u8>, u64) = read(reply)?;
    let outcome = match outcome {
        1 => BanOutcome::Imposed,
        -1 => BanOutcome::LiftedSince,
        _ => BanOutcome::NotImposed,
    };
    let reason = String::from_utf8_lossy(&reason).into_owned();
    let (remaining, timestamp) = (Duration::from_micros(wait_us), Duration::from_micros(at_us));
    Ok(BanReply { remaining, outcome, reason, timestamp })
}
