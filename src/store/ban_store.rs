//! [`BanStore`]: where bans are kept beside the windows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{LogId, StoreFuture};
use crate::key::Key;
use crate::policy::Policy;

/// Keeps the bans that [`Bans`](crate::Bans) shows.
///
/// Both stores of this crate do.
pub trait BanStore: Send + Sync + 'static {
    /// Returns the ban of a window's key.
    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>>;

    /// Bans a window's key for so long, unless it is banned for longer; returns the ban that stands.
    fn impose(&self, log: &LogId, duration: Duration, reason: &str) -> StoreFuture<Ban>;

    /// Forgets a window's key's ban, strikes and levels, and says whether there was any.
    fn lift(&self, log: &LogId) -> StoreFuture<bool>;

    /// Returns about `count` keys that a policy has banned, from a cursor on.
    ///
    /// The first page begins at [`BanCursor::default`]. All pages together hold each key that was
    /// banned all the while.
    fn page(&self, policy: &Arc<Policy>, cursor: BanCursor, count: usize) -> StoreFuture<BanPage>;
}

/// A ban that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    pub(crate) remaining: Duration,
    pub(crate) reason: String,
    pub(crate) is_new: bool,
}

impl Ban {
    /// Returns how long it goes on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns why it was imposed: `strikes`, or what was given by hand.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Where a [page](Bans::page) of bans begins. Defaults to the first page.
///
/// Its text form can travel in a URL. It belongs to the store that made it.
///
/// ```
/// use tower_sliding_window::BanCursor;
///
/// let first = BanCursor::default();
/// assert_eq!(first.to_string().parse(), Ok(first));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BanCursor(u64);

impl BanCursor {
    /// Creates a cursor from a store's own number, 0 for the first page; for writers of a store.
    #[must_use]
    pub const fn new(place: u64) -> Self {
        Self(place)
    }

    /// Returns the store's own number.
    #[must_use]
    pub const fn place(self) -> u64 {
        self.0
    }
}

impl fmt::Display for BanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BanCursor {
    type Err = ParseBanCursorError;

    fn from_str(text: &str) -> Result<Self, ParseBanCursorError> {
        let digits = text.bytes().all(|letter| letter.is_ascii_digit());
        let place = text.parse().ok().filter(|_| digits).map(Self);
        place.ok_or_else(|| ParseBanCursorError { text: text.to_owned() })
    }
}

/// A text that is not a [`BanCursor`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the cursor of a page of bans")]
pub struct ParseBanCursorError {
    text: String,
}

/// Some of the bans of a policy, in no particular order.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BanPage {
    /// The keys that are banned, each with its ban.
    pub bans: Vec<(Key, Ban)>,
    /// Where the next page begins; none after the last page.
    pub next: Option<BanCursor>,
}

impl BanPage {
    /// Creates a page.
    #[must_use]
    pub const fn new(bans: Vec<(Key, Ban)>, next: Option<BanCursor>) -> Self {
        Self { bans, next }
    }
}
