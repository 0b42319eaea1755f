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
        match self {
            Self::Institution => "institution",
            Self::Channel => "channel",
            Self::Receiver => "receiver",
        }
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
            Self::Institution(name) => write!(f, "{}/{name}", Level::Institution.name()),
        }
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        if let Some(level) = Level::ALL.into_iter().find(|level| level.name() == text) {
            return Ok(Self::Level(level));
        }
        match text.split_once('/') {
            Some(("institution", name)) => {
                name.parse().map(Self::Institution).map_err(|_| UnknownTarget)
            }
            _ => Err(UnknownTarget),
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
    institution: Policy,
    /// The institutions there are, and what those have that have a threshold of their own.
    institutions: BTreeMap<Name, Option<Policy>>,
    channel: Policy,
    receiver: Policy,
}

impl Thresholds {
    pub(crate) fn new(
        institution: Policy,
        institutions: BTreeMap<Name, Option<Policy>>,
        channel: Policy,
        receiver: Policy,
    ) -> Self {
        Self { institution, institutions, channel, receiver }
    }

    /// Replaces one threshold.
    pub(crate) fn set(&mut self, target: &Target, policy: Policy) -> Result<(), UnknownTarget> {
        match target {
            Target::Level(Level::Institution) => self.institution = policy,
            Target::Level(Level::Channel) => self.channel = policy,
            Target::Level(Level::Receiver) => self.receiver = policy,
            Target::Institution(name) => {
                *self.institutions.get_mut(name).ok_or(UnknownTarget)? = Some(policy);
            }
        }
        Ok(())
    }

    /// Replaces one threshold by what it is in `other`.
    pub(crate) fn set_as_in(&mut self, other: &Self, target: &Target) -> Result<(), UnknownTarget> {
        if let Target::Institution(name) = target {
            let own = self.institutions.get_mut(name).ok_or(UnknownTarget)?;
            *own = other.institutions.get(name).cloned().flatten();
            return Ok(());
        }
        self.set(target, other.get(target)?.clone())
    }

    /// Returns the threshold of a level.
    pub(crate) fn of(&self, level: Level) -> &Policy {
        match level {
            Level::Institution => &self.institution,
            Level::Channel => &self.channel,
            Level::Receiver => &self.receiver,
        }
    }

    /// Returns one threshold: of an institution its own, or else that of the level.
    pub(crate) fn get(&self, target: &Target) -> Result<&Policy, UnknownTarget> {
        match target {
            Target::Level(level) => Ok(self.of(*level)),
            Target::Institution(name) => {
                let own = self.institutions.get(name).ok_or(UnknownTarget)?;
                Ok(own.as_ref().unwrap_or(&self.institution))
            }
        }
    }

    /// Returns every institution with its threshold.
    pub(crate) fn institutions(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.institutions
            .iter()
            .map(|(name, own)| (name, own.as_ref().unwrap_or(&self.institution)))
    }

    /// Adds up what the levels admit altogether.
    pub(crate) fn sum(&self) -> Sum {
        Sum::new(self.institutions())
    }
}
