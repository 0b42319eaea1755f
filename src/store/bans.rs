//! [`Ban`] and [`BanPage`]: what a store returns of the bans of a policy.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::key::Key;

/// A ban in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    pub(crate) remaining: Duration,
    pub(crate) reason: String,
    pub(crate) is_new: bool,
    pub(crate) lengthens: bool,
}

impl Ban {
    /// Returns the remaining length.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns whether the call of [`Bans::impose`](crate::Bans::impose) that returned it has imposed the ban
    /// or made it longer.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether that call has made a ban longer.
    #[must_use]
    pub fn lengthens(&self) -> bool {
        self.lengthens
    }

    /// Returns the reason: `strikes`, or the reason passed to [`Bans::impose`](crate::Bans::impose).
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// The position where a [page](crate::Bans::page) of bans begins. Defaults to the first page.
///
/// Its text form fits into a URL. A cursor is valid only for the store that created it.
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
    /// Creates a cursor from the store's own number of the position, 0 for the first page.
    ///
    /// For authors of a store.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// Returns the store's own number of the position.
    #[must_use]
    pub const fn position(self) -> u64 {
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
        let only_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let position = text.parse().ok().filter(|_| only_digits).map(Self);
        position.ok_or_else(|| ParseBanCursorError { text: text.to_owned() })
    }
}

/// The error of a text that is not a [`BanCursor`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the cursor of a page of bans")]
pub struct ParseBanCursorError {
    text: String,
}

/// A part of the bans of a policy, in no particular order.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BanPage {
    /// The banned keys, each with its ban.
    pub bans: Vec<(Key, Ban)>,
    /// Where the next page begins, or `None` after the last page.
    pub next: Option<BanCursor>,
}

impl BanPage {
    /// Creates a page.
    #[must_use]
    pub const fn new(bans: Vec<(Key, Ban)>, next: Option<BanCursor>) -> Self {
        Self { bans, next }
    }
}
