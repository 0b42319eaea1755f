//! [`Thresholds`]: which institutions and channels there are, and what each level admits by
//! configuration.

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

/// A list of names that messages may have at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum List {
    Institutions,
    Channels,
}

impl List {
    pub(crate) const ALL: [Self; 2] = [Self::Institutions, Self::Channels];

    /// Returns the list's name, which is that of its route too.
    pub(crate) const fn name(self) -> &'static str {
        ["institutions", "channels"][self as usize]
    }

    /// Returns the level that the names are of.
    pub(crate) const fn level(self) -> Level {
        [Level::Institution, Level::Channel][self as usize]
    }
}

/// Whose threshold it is: `institution`, `channel` or `receiver` for all that have none of their own,
/// or `institution/NAME` or `channel/NAME` for one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Level(Level),
    Member(List, Name),
}

impl Target {
    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Level(level) => *level,
            Self::Member(list, _) => list.level(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => f.write_str(level.name()),
            Self::Member(list, name) => write!(f, "{}/{name}", list.level().name()),
        }
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        let Some((level, name)) = text.split_once('/') else {
            return Level::from_str(text, false).map(Self::Level).map_err(|_| UnknownTarget);
        };
        let list = List::ALL.into_iter().find(|list| list.level().name() == level);
        let name = name.parse().map_err(|_| UnknownTarget)?;
        list.map(|list| Self::Member(list, name)).ok_or(UnknownTarget)
    }
}

/// There is no such level, institution or channel.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "there is no such level, institution or channel: write institution, channel, receiver, \
     institution/NAME or channel/NAME; PUT /institutions/NAME and PUT /channels/NAME add a NAME"
)]
pub(crate) struct UnknownTarget;

/// The members of a list, and the thresholds of those that have one of their own.
pub(crate) type Members = BTreeMap<Name, Option<Policy>>;

/// What each level admits by configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thresholds {
    /// In the order of [`Level::ALL`].
    pub(crate) levels: [Policy; Level::ALL.len()],
    /// In the order of [`List::ALL`].
    pub(crate) lists: [Members; List::ALL.len()],
}

impl Thresholds {
    /// Returns the members of a list.
    pub(crate) fn list(&self, list: List) -> &Members {
        &self.lists[list as usize]
    }

    pub(crate) fn list_mut(&mut self, list: List) -> &mut Members {
        &mut self.lists[list as usize]
    }

    /// Returns the threshold of a level.
    pub(crate) fn of(&self, level: Level) -> &Policy {
        &self.levels[level as usize]
    }

    /// Returns one threshold: of a member its own, or else that of the level.
    pub(crate) fn get(&self, target: &Target) -> Result<&Policy, UnknownTarget> {
        match target {
            Target::Level(level) => Ok(self.of(*level)),
            Target::Member(list, name) => {
                let own = self.list(*list).get(name).ok_or(UnknownTarget)?;
                Ok(own.as_ref().unwrap_or(self.of(list.level())))
            }
        }
    }

    /// Returns every member of a list with its threshold.
    pub(crate) fn members(&self, list: List) -> impl Iterator<Item = (&Name, &Policy)> {
        let level = self.of(list.level());
        self.list(list).iter().map(move |(name, own)| (name, own.as_ref().unwrap_or(level)))
    }

    /// Adds up what the levels admit altogether.
    pub(crate) fn sum(&self) -> Sum {
        Sum::new(self.members(List::Institutions))
    }
}
