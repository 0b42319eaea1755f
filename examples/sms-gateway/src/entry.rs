//! [`Entry`]: what was changed about one target, and how that is kept in Redis.

use std::fmt;
use std::str::FromStr;

use tower_sliding_window::{Policy, PolicyError};

use crate::thresholds::{Target, Thresholds, UnknownTarget};

/// What was changed about a target. Its text form is a policy, `level` or `removed`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// It has this threshold.
    Policy(Policy),
    /// It is there, and follows its level.
    Level,
    /// It is not there, whatever the flags say.
    Removed,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(policy) => policy.fmt(f),
            Self::Level => f.write_str("level"),
            Self::Removed => f.write_str("removed"),
        }
    }
}

impl FromStr for Entry {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Ok(match text {
            "level" => Self::Level,
            "removed" => Self::Removed,
            policy => Self::Policy(policy.parse()?),
        })
    }
}

impl Thresholds {
    /// Makes one change.
    pub(crate) fn set(&mut self, target: &Target, entry: &Entry) -> Result<(), UnknownTarget> {
        match (target, entry) {
            (Target::Level(level), Entry::Policy(policy)) => {
                self.levels[*level as usize] = policy.clone();
            }
            (Target::Level(_), Entry::Level | Entry::Removed) => return Err(UnknownTarget),
            (Target::Member(list, name), Entry::Policy(policy)) => {
                self.list_mut(*list).insert(name.clone(), Some(policy.clone()));
            }
            (Target::Member(list, name), Entry::Level) => {
                self.list_mut(*list).insert(name.clone(), None);
            }
            (Target::Member(list, name), Entry::Removed) => {
                self.list_mut(*list).remove(name);
            }
        }
        Ok(())
    }

    /// Replaces what holds for one target by what holds for it in `other`.
    pub(crate) fn set_as_in(&mut self, other: &Self, target: &Target) {
        match target {
            Target::Level(level) => self.levels[*level as usize] = other.of(*level).clone(),
            Target::Member(list, name) => {
                let members = self.list_mut(*list);
                match other.list(*list).get(name) {
                    Some(own) => members.insert(name.clone(), own.clone()),
                    None => members.remove(name),
                };
            }
        }
    }
}
