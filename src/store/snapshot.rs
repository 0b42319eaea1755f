//! [`LogSnapshot`]: what a process tells a store about a log, and what it learns in return.

use std::time::Duration;

use uuid::Uuid;

/// What a process knows of one log, for a store that may not know it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LogSnapshot {
    /// The admissions, in any order.
    pub admissions: Vec<Admission>,
    /// The ban of the log's key. Defaults to none.
    pub ban: Option<BanSnapshot>,
}

impl LogSnapshot {
    /// Creates what is known from some admissions.
    #[must_use]
    pub fn new(admissions: Vec<Admission>) -> Self {
        Self { admissions, ban: None }
    }

    /// Tells whether there is nothing to tell.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.admissions.is_empty() && self.ban.is_none()
    }
}

/// A request that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The request's identity, under which it is counted once.
    pub id: Uuid,
    /// How many places it takes.
    pub cost: u32,
    /// How long ago it was admitted.
    pub age: Duration,
    /// Whether the store has admitted it itself, so that a timestamp that it has is the right one.
    /// Otherwise a timestamp that it has is raised to the one given here, and never lowered.
    pub confirmed: bool,
}

impl Admission {
    /// Creates an admission by another store, `age` ago.
    #[must_use]
    pub const fn new(id: Uuid, cost: u32, age: Duration) -> Self {
        Self { id, cost, age, confirmed: false }
    }
}

/// A ban that a process has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanSnapshot {
    /// How long it goes on.
    pub remaining: Duration,
    /// Why it was imposed.
    pub reason: String,
    /// How long ago the process imposed it or saw it last.
    pub seen: Duration,
    /// When it was seen last, on the store's own clock, see
    /// [`Admitted::timestamp`](crate::Admitted::timestamp). None if the process imposed it without the store.
    pub seen_there: Option<Duration>,
}

/// What a store says to a [`LogSnapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// How many entries the store lacked, and has now.
    pub added: u32,
    /// How long ago the log was last reset, if that may matter still. Admissions from before were
    /// not recorded.
    pub reset: Option<Duration>,
    /// Whether the ban was lifted after it was seen last, and so was not imposed again.
    pub lifted: bool,
}

impl Restored {
    /// Creates the reply of a store that lacked so many entries.
    #[must_use]
    pub const fn added(added: u32) -> Self {
        Self { added, reset: None, lifted: false }
    }
}
