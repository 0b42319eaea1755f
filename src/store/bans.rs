//! [`Ban`] and [`BanPage`]: what a store returns of the bans of a policy.

use std::time::Duration;

use crate::key::Key;

/// A ban in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ban {
    /// The remaining length.
    pub remaining: Duration,
    /// The reason: `strikes`, or the reason passed to [`Bans::impose`](crate::Bans::impose). If Redis has lost the ban, a
    /// process that has only met it restores it as one by strikes.
    pub reason: String,
    /// Whether the call of [`Bans::impose`](crate::Bans::impose) that returned it has imposed the ban or made it longer.
    pub is_new: bool,
    /// Whether that call has made a ban longer.
    pub lengthens: bool,
}

/// A part of the bans of a policy, in no particular order.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BanPage {
    /// The banned keys, each with its ban.
    pub bans: Vec<(Key, Ban)>,
    /// The cursor of the next page, or `None` after the last page.
    pub next: Option<u64>,
}

impl BanPage {
    /// Creates a page.
    pub const fn new(bans: Vec<(Key, Ban)>, next: Option<u64>) -> Self {
        Self { bans, next }
    }
}
