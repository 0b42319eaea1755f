//! [`Thresholds`]: what each level admits by configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use tower_sliding_window::Policy;

use crate::name::Name;
use crate::sum::Sum;

/// What a message is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// The sender: one log for each institution.
    Institution,
    /// The way: one log for each channel, for all institutions together.
    Channel,
    /// The receiver: one log for each telephone number, for all institutions together.
    Receiver,
}

impl Level {
    pub(crate) const ALL: [Self; 3] = [Self::Institution, Self::Channel, Self::Receiver];

    /// Returns the level's name, which its policies have too.
    pub(crate) const fn name(self) -> &'static str {
        ["institution", "channel", "receiver"][self as usize]
    }
}

/// Whose threshold it is: `channel`, `receiver`, `institution` for every institution that has none
/// of its own, or `institution/NAME` for one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Level(Level),
    Institution(Name),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => f.write_str(level.name()),
            Self::Institution(name) => write!(f, "institution/{name}"),
        }
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        match text.strip_prefix("institution/") {
            Some(name) => name.parse().map(Self::Institution).map_err(|_| UnknownTarget),
            None => Level::from_str(text, false).map(Self::Level).map_err(|_| UnknownTarget),
        }
    }
}

/// There is no such level, or no such institution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "there is no such level or institution: write institution, channel, receiver, or \
     institution/NAME with a NAME that the server was started with"
)]
pub(crate) struct UnknownTarget;

/// What each level admits by configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thresholds {
    /// In the order of [`Level::ALL`].
    pub(crate) levels: [Policy; Level::ALL.len()],
    /// The institutions there are, and what those have that have a threshold of their own.
    pub(crate) institutions: BTreeMap<Name, Option<Policy>>,
}

impl Thresholds {
    /// Replaces one threshold.
    pub(crate) fn set(&mut self, target: &Target, policy: Policy) -> Result<(), UnknownTarget> {
        match target {
            Target::Level(level) => self.levels[*level as usize] = policy,
            Target::Institution(name) => {
                *self.institutions.get_mut(name).ok_or(UnknownTarget)? = Some(policy);
            }
        }
        Ok(())
    }

    /// Replaces one threshold by what it is in `other`.
    pub(crate) fn set_as_in(&mut self, other: &Self, target: &Target) -> Result<(), UnknownTarget> {
        match target {
            Target::Level(level) => self.set(target, other.of(*level).clone())?,
            Target::Institution(name) => {
                let own = self.institutions.get_mut(name).ok_or(UnknownTarget)?;
                *own = other.institutions.get(name).cloned().flatten();
            }
        }
        Ok(())
    }

    /// Returns the threshold of a level.
    pub(crate) fn of(&self, level: Level) -> &Policy {
        &self.levels[level as usize]
    }

    /// Returns one threshold: of an institution its own, or else that of the level.
    pub(crate) fn get(&self, target: &Target) -> Result<&Policy, UnknownTarget> {
        match target {
            Target::Level(level) => Ok(self.of(*level)),
            Target::Institution(name) => {
                let mut all = self.institutions();
                all.find(|(it, _)| *it == name).map(|(_, policy)| policy).ok_or(UnknownTarget)
            }
        }
    }

    /// Returns every institution with its threshold.
    pub(crate) fn institutions(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        let level = self.of(Level::Institution);
        self.institutions.iter().map(move |(name, own)| (name, own.as_ref().unwrap_or(level)))
    }

    /// Adds up what the levels admit altogether.
    pub(crate) fn sum(&self) -> Sum {
        Sum::new(self.institutions())
    }
}
