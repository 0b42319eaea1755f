//! Reads the replies of the scripts for limits and bans.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use super::requests::AdmitReply;
use crate::error::StoreError;
use crate::policy::Penalty;
use crate::redis::{Numbers, malformed, read};
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, QuotaState, Strike};

pub(super) fn admit(reply: &AdmitReply, check: &Check) -> Outcome {
    let AdmitReply { is_admitted, at_us, state } = *reply;
    let mut logs = SmallVec::new();
    for log in &check.logs {
        logs.push(LogOutcome::of(&log.policy, |_| state));
    }
    Outcome::from_logs(is_admitted, logs).with_timestamp(Duration::from_micros(at_us))
}

pub(super) fn penalties(logs: &[LogId]) -> impl Iterator<Item = (usize, &Penalty)> {
    let logs = logs.iter().enumerate();
    logs.filter_map(|(index, log)| Some((index, log.policy.get_penalty()?)))
}

pub(super) fn admit_all(reply: &Value, check: &Check) -> Result<Outcome, StoreError> {
    let mut numbers = Numbers::of(reply)?;
    let (admitted, at_us) = (numbers.next()? == 1, numbers.next_unsigned()?);
    let mut logs = SmallVec::<[LogOutcome; 1]>::new();
    for log in &check.logs {
        let state = |_| {
            Ok(QuotaState {
                remaining: u32::try_from(numbers.next_unsigned()?).unwrap_or(u32::MAX),
                wait_us: numbers.next_unsigned()?,
                reset_us: numbers.next_unsigned()?,
            })
        };
        let states = log.policy.quotas_and_candidates().map(state);
        logs.push(LogOutcome::with_states(&log.policy, states.collect::<Result<_, StoreError>>()?));
    }
    for (index, _) in penalties(&check.logs) {
        let remaining_us = numbers.next_unsigned()?;
        let strike = match numbers.next()? {
            0 => Strike::None,
            1 => Strike::Counted,
            _ => Strike::Banned,
        };
        logs[index].set_ban(BanState { remaining_us, strike });
    }
    if !numbers.is_empty() {
        return Err(malformed("expected no further number from admit_all.lua"));
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
