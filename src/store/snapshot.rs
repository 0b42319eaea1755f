//! [`LogSnapshot`]: what a process knows of a log, to be restored in a store.

use std::time::Duration;

use uuid::Uuid;

/// The admissions and the ban that a process knows of one log. [`Store::restore`] records them.
///
/// [`Store::restore`]: super::Store::restore
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LogSnapshot {
    /// The admissions, in any order.
    pub admissions: Vec<Admission>,
    /// The ban of the log's key. Defaults to none.
    pub ban: Option<BanSnapshot>,
}

impl LogSnapshot {
    /// Creates a snapshot with admissions and without a ban.
    #[must_use]
    pub fn new(admissions: Vec<Admission>) -> Self {
        Self { admissions, ban: None }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.admissions.is_empty() && self.ban.is_none()
    }
}

/// An admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The identity of the request. A request counts once under one identity.
    pub id: Uuid,
    /// How many places the request takes.
    pub cost: u32,
    /// How long ago the request was admitted.
    pub age: Duration,
    /// Whether the store has admitted the request itself. If so, the timestamp that the store has is
    /// the right one. Otherwise the store raises its timestamp to this admission's, and never lowers
    /// it.
    pub confirmed: bool,
}

impl Admission {
    /// Creates an admission that the store has not confirmed.
    #[must_use]
    pub const fn new(id: Uuid, cost: u32, age: Duration) -> Self {
        Self { id, cost, age, confirmed: false }
    }
}

/// A ban that a process has imposed or seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanSnapshot {
    /// The remaining length.
    pub remaining: Duration,
    /// The reason.
    pub reason: String,
    /// How long ago the process imposed the ban or last saw it in the store.
    pub age: Duration,
    /// The store's timestamp when the process last saw the ban there, see
    /// [`Admitted::timestamp`](crate::Admitted::timestamp). `None` if the process imposed the ban
    /// without the store.
    pub store_timestamp: Option<Duration>,
}

/// The result of [`Store::restore`](super::Store::restore).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// How many entries were missing and are recorded now.
    pub added: u32,
    /// How long ago the log was last reset, if a process may still have admissions from before. Those
    /// were not recorded.
    pub reset: Option<Duration>,
    /// Whether the ban was lifted after the process last saw it, and was therefore not imposed.
    pub lifted: bool,
}

impl Restored {
    /// Creates the result of recording `added` missing entries.
    #[must_use]
    pub const fn added(added: u32) -> Self {
        Self { added, reset: None, lifted: false }
    }
}
