//! [`Thresholds`]: what an operator has set for a policy.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tower_sliding_window::{Policy, PolicyError};

/// The quotas of a policy, and candidates that are counted and not enforced.
///
/// The penalty stays the one of the flags or of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct Thresholds {
    /// As in the flags: `2/1s,5/60s`.
    quotas: String,
    /// In the same form; empty for none.
    #[serde(default)]
    candidates: String,
}

impl Thresholds {
    /// Returns those of a policy.
    pub(crate) fn of(policy: &Policy) -> Self {
        let candidates: Vec<String> = policy.candidates().iter().map(ToString::to_string).collect();
        let quotas: Vec<String> = policy.quotas().iter().map(ToString::to_string).collect();
        Self { quotas: quotas.join(","), candidates: candidates.join(",") }
    }

    /// Returns a policy with these thresholds, and with the name and the penalty of `base`.
    ///
    /// # Errors
    ///
    /// [`ThresholdsError`] if a text is not a list of quotas.
    pub(crate) fn applied_to(&self, base: &Policy) -> Result<Policy, ThresholdsError> {
        let quotas: Policy = self.quotas.trim().parse().map_err(ThresholdsError::Quotas)?;
        let mut policy = Policy::new(base.name());
        for quota in quotas.quotas() {
            policy = policy.quota(*quota);
        }
        if !self.candidates.trim().is_empty() {
            let candidates: Policy =
                self.candidates.trim().parse().map_err(ThresholdsError::Candidates)?;
            for candidate in candidates.quotas() {
                policy = policy.candidate(*candidate);
            }
        }
        Ok(base.get_penalty().cloned().into_iter().fold(policy, Policy::penalty))
    }
}

/// What is wrong with the text of thresholds.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThresholdsError {
    #[error("`quotas`: {0}")]
    Quotas(#[source] PolicyError),
    #[error("`candidates`: {0}")]
    Candidates(#[source] PolicyError),
}

/// What was changed about a policy, as Redis keeps it: thresholds in JSON, or `configured`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Set(Thresholds),
    /// The policy is again the one of the flags or of the file.
    Configured,
}

const CONFIGURED: &str = "configured";

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(thresholds) => {
                f.write_str(&serde_json::to_string(thresholds).map_err(|_| fmt::Error)?)
            }
            Self::Configured => f.write_str(CONFIGURED),
        }
    }
}

impl FromStr for Entry {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        if text == CONFIGURED {
            Ok(Self::Configured)
        } else {
            serde_json::from_str(text).map(Self::Set)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thresholds(quotas: &str, candidates: &str) -> Thresholds {
        Thresholds { quotas: quotas.to_owned(), candidates: candidates.to_owned() }
    }

    #[test]
    fn penalty_and_name_stay() {
        let base: Policy = "5/60s".parse().unwrap();
        let base = base.named("user").penalty("3/10m:1h".parse().unwrap());
        let policy = thresholds(" 2/1s,8/60s ", "4/60s").applied_to(&base).unwrap();
        assert_eq!((policy.name(), policy.to_string()), ("user", "2/1s,8/60s".to_owned()));
        assert_eq!(policy.get_penalty(), base.get_penalty());
        assert_eq!(Thresholds::of(&policy), thresholds("2/1s,8/60s", "4/60s"));
        for wrong in [thresholds("", ""), thresholds("5/0s", ""), thresholds("5/60s", "x")] {
            assert!(wrong.applied_to(&base).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        for entry in [Entry::Configured, Entry::Set(thresholds("5/60s", ""))] {
            assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
        }
        assert!("{}".parse::<Entry>().is_err());
    }
}
