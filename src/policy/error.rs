//! The errors of policies and penalties.

use super::MOST_QUOTAS;
use crate::quota::ParseQuotaError;

/// The error of a [`Policy`](crate::Policy).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is empty, too long, or has a character that is not valid in a header or a Redis key.
    #[error("{name:?} is not a policy name: use 1 to 64 characters of A-Z a-z 0-9 _ . -")]
    Name {
        /// The name.
        name: String,
    },
    /// The policy has no quota, so it would limit nothing.
    #[error("the policy {name:?} has no quota: add one with Policy::quota")]
    NoQuota {
        /// The policy's name.
        name: String,
    },
    /// The policy has more than 16 quotas. Each takes time of every check, and a place in the headers.
    #[error("a policy has at most {MOST_QUOTAS} quotas, and not {quotas}")]
    TooManyQuotas {
        /// The number of quotas.
        quotas: usize,
    },
    /// The policy has no penalty, so bans under it would not be enforced.
    #[error(
        "the policy {name:?} has no penalty, so that its bans would not be enforced: add one with \
         Policy::penalty, such as Penalty::manual()"
    )]
    NoPenalty {
        /// The policy's name.
        name: String,
    },
    /// A quota can't be parsed.
    #[error("quota number {position}: {error}")]
    Quota {
        /// The position of the quota in the comma-separated list, counted from 1.
        position: usize,
        /// The error of the quota.
        error: ParseQuotaError,
    },
    /// A set of policies is empty, so it would limit nothing.
    #[error("there is no policy: name at least one")]
    NoPolicy,
    /// Two policies of a set have the same name.
    #[error(
        "there are two policies named {name:?}: their logs are kept by name, so each needs its own"
    )]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A new set lacks policies that are in use.
    #[error(
        "missing from the new policies, but in use: {names}; a policy can't be removed or renamed while \
         the program runs, because its rules would lose their limit and their logs"
    )]
    Missing {
        /// The names, each in quotation marks, separated by commas.
        names: String,
    },
    /// The policy of a handle can't change its name.
    #[error("the policy {from:?} can't be replaced by one named {to:?}: its logs are kept by name")]
    Renamed {
        /// The name of the policy in use.
        from: String,
        /// The name of the new policy.
        to: String,
    },
}

/// The error of a [`Penalty`](crate::Penalty) or its text form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePenaltyError {
    /// The text has no colon, so it has no levels.
    #[error("write STRIKES/TIME:LENGTH,LENGTH,..., such as 3/10m:1m,1h,24h, or manual")]
    NoLevels,
    /// The text before the colon can't be parsed.
    #[error("the strikes, before the colon: {0}")]
    Strikes(ParseQuotaError),
    /// A level can't be parsed.
    #[error("level number {position}: {error}")]
    Level {
        /// The position of the level in the comma-separated list, counted from 1.
        position: usize,
        /// The error of the level.
        error: ParseQuotaError,
    },
    /// The number of strikes is too high.
    #[error("{strikes} strikes are too many: a ban comes after 1 to 100")]
    TooManyStrikes {
        /// The number of strikes.
        strikes: u32,
    },
    /// There is no level, or there are too many.
    #[error("a penalty has 1 to 100 levels, not {levels}")]
    LevelCount {
        /// The number of levels.
        levels: usize,
    },
    /// A level is shorter than a second, longer than a year, or shorter than the one before it.
    #[error(
        "level number {position} must be a second to a year long, and no shorter than the one before"
    )]
    LevelLength {
        /// The position of the level, counted from 1.
        position: usize,
    },
    /// What follows the levels is not one decay.
    #[error("{text:?} is not an option of a penalty: write `decay LENGTH` once")]
    Option {
        /// The words.
        text: String,
    },
    /// The decay can't be parsed, or is too short or too long.
    #[error("the decay {text:?} is not a length of time from a second to a year, such as 7d")]
    Decay {
        /// The text after `decay`.
        text: String,
    },
}
