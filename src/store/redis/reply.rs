//! What Redis's replies mean.

use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};

use super::{Partition, Verdict};
use crate::error::StoreError;
use crate::penalty::Penalty;
use crate::store::{BanState, Struck};
use crate::window::QuotaState;

/// The integers of `admit_all.lua` before those of the quotas.
const HEAD: usize = 2;
/// The integers of `admit_all.lua` for each quota.
const PER_QUOTA: usize = 3;
/// The integers of `admit_all.lua` for each penalty.
const PER_PENALTY: usize = 2;

/// Reads the reply of `admit.lua`.
pub(super) fn verdict_of_one(reply: &Value) -> Result<Verdict, StoreError> {
    let reply: i64 = read(reply)?;
    let state = QuotaState {
        remaining: u32::try_from(reply).unwrap_or(0),
        wait_us: if reply < 0 { reply.unsigned_abs() } else { 0 },
        reset_us: 0,
    };
    Ok(Verdict::new(reply >= 0, None, smallvec::smallvec![state]))
}

/// Returns which of some windows have a policy with a penalty, and that penalty.
pub(super) fn penalties(partitions: &[Partition]) -> impl Iterator<Item = (usize, &Penalty)> {
    partitions
        .iter()
        .enumerate()
        .filter_map(|(place, it)| Some((place, it.policy.penalty_for_strikes()?)))
}

/// Reads the reply of `admit_all.lua` about some windows.
pub(super) fn verdict(reply: &Value, partitions: &[Partition]) -> Result<Verdict, StoreError> {
    let quotas: usize = partitions.iter().map(|it| it.policy.judged().len()).sum();
    let integers = HEAD + PER_QUOTA * quotas + PER_PENALTY * penalties(partitions).count();
    let malformed = || StoreError::Protocol {
        message: format!("expected {integers} integers from admit_all.lua"),
    };
    let Value::Array(items) = reply else { return Err(malformed()) };
    let mut integers = items.iter().map(|item| match item {
        Value::Int(integer) => u64::try_from(*integer).map_err(|_| malformed()),
        _ => Err(malformed()),
    });
    let mut next = || integers.next().unwrap_or_else(|| Err(malformed()));
    let (admitted, at_us) = (next()? == 1, next()?);
    let state = |_| {
        Ok(QuotaState {
            remaining: u32::try_from(next()?).unwrap_or(u32::MAX),
            wait_us: next()?,
            reset_us: next()?,
        })
    };
    let states = (0..quotas).map(state).collect::<Result<_, StoreError>>()?;
    let mut verdict = Verdict::new(admitted, Some(at_us), states);
    for (place, _) in penalties(partitions) {
        let wait_us = next()?;
        let struck = match next()? {
            0 => Struck::No,
            1 => Struck::Strike,
            _ => Struck::Banned,
        };
        verdict.bans.push(BanState::new(place, wait_us, struck));
    }
    verdict.bans.retain(|ban| ban.matters());
    Ok(verdict)
}

/// What has become of a ban that was put to `ban.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BanOutcome {
    /// It stands.
    Imposed,
    /// None was to be imposed, or another stands that ends as late.
    NotImposed,
    /// It was lifted after it was seen.
    LiftedSince,
}

/// The reply of `ban.lua`.
pub(super) struct BanReply {
    /// How long the ban that stands goes on. Zero if there is none.
    pub(super) remaining: Duration,
    pub(super) outcome: BanOutcome,
    /// Why the ban that stands was imposed.
    pub(super) reason: String,
    /// When the reply was given, on Redis's clock.
    pub(super) at_us: u64,
}

/// Reads the reply of `ban.lua`.
pub(super) fn ban(reply: &Value) -> Result<BanReply, StoreError> {
    let (wait_us, outcome, reason, at_us): (u64, i64, Vec<u8>, u64) = read(reply)?;
    let outcome = match outcome {
        1 => BanOutcome::Imposed,
        -1 => BanOutcome::LiftedSince,
        _ => BanOutcome::NotImposed,
    };
    let reason = String::from_utf8_lossy(&reason).into_owned();
    Ok(BanReply { remaining: Duration::from_micros(wait_us), outcome, reason, at_us })
}

/// Reads any other reply.
pub(crate) fn read<T: FromRedisValue>(reply: &Value) -> Result<T, StoreError> {
    T::from_redis_value_ref(reply)
        .map_err(|error| StoreError::Protocol { message: error.to_string() })
}

/// Says what an error of the connection or the server means for the request.
pub(super) fn error(error: RedisError) -> StoreError {
    let message = error.to_string();
    if error.is_timeout() {
        StoreError::Timeout
    } else if error.is_connection_refusal() {
        StoreError::Unreachable { message }
    } else if error.is_io_error() || error.is_connection_dropped() {
        StoreError::Disconnected { message }
    } else {
        StoreError::Refused { code: code_of(error.code().unwrap_or_default(), &message), message }
    }
}

/// Returns the code of a refusal. Redis 6.2 puts that of a command in a script behind an `ERR`:
/// `Error running script (call to f_7a4e): @user_script:23: WRONGTYPE Operation against ...`.
fn code_of(code: &str, message: &str) -> String {
    let of_the_command = || {
        let (_, after) = message.split_once("@user_script:")?;
        let word = after.split_once(": ")?.1.split(' ').next()?;
        word.bytes().all(|byte| byte.is_ascii_uppercase()).then_some(word)
    };
    let inner = if code == "ERR" { of_the_command() } else { None };
    inner.unwrap_or(code).to_owned()
}
