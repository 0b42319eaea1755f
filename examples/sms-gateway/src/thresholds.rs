//! [`Thresholds`]: which institutions, channels and destinations there are, and what each level admits
//! by configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use tower_sliding_window::{Denied, Policy};

use crate::name::{Name, NameError};
use crate::sum::Sum;

/// What a message is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// The sender: one log for each institution.
    Institution,
    /// The way: one log for each channel.
    Channel,
    /// Where to: one log for each prefix of telephone numbers.
    Destination,
    /// The receiver: one log for each telephone number.
    Receiver,
}

impl Level {
    pub(crate) const ALL: [Self; 4] =
        [Self::Institution, Self::Channel, Self::Destination, Self::Receiver];

    /// Returns the level's name, which its policies have too.
    pub(crate) const fn name(self) -> &'static str {
        ["institution", "channel", "destination", "receiver"][self as usize]
    }

    /// Returns the name of the policies that hold one institution to its share of the level.
    pub(crate) const fn share_name(self) -> &'static str {
        ["", "channel-share", "destination-share", "receiver-share"][self as usize]
    }

    /// Tells whether a denial is by a policy of this level.
    pub(crate) fn has_denied(self, denied: &Denied) -> bool {
        denied.violated().any(|name| name == self.name() || name == self.share_name())
    }
}

/// A list of names that messages may have at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum List {
    Institutions,
    Channels,
    Destinations,
}

impl List {
    pub(crate) const ALL: [Self; 3] = [Self::Institutions, Self::Channels, Self::Destinations];

    /// Returns the list's name, which is that of its route too.
    pub(crate) const fn name(self) -> &'static str {
        ["institutions", "channels", "destinations"][self as usize]
    }

    /// Returns the level that the names are of.
    pub(crate) const fn level(self) -> Level {
        [Level::Institution, Level::Channel, Level::Destination][self as usize]
    }

    /// Reads the name of a member.
    pub(crate) fn member(self, name: &str) -> Result<Name, NameError> {
        if self == Self::Destinations { Name::destination(name) } else { name.parse() }
    }
}

/// Whose threshold it is: that of a level, such as `channel`, for all that have none of their own, or
/// that of one member, such as `channel/NAME`.
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
        let list = list.ok_or(UnknownTarget)?;
        list.member(name).map(|name| Self::Member(list, name)).map_err(|_| UnknownTarget)
    }
}

/// There is no such level, institution, channel or destination.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "there is no such level or member: write institution, channel, destination or receiver, or \
     LEVEL/NAME for a member; PUT /institutions/NAME, /channels/NAME or /destinations/+49 adds one"
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
