//! [`BanStore`]: where bans are kept beside the windows.

use std::sync::Arc;
use std::time::Duration;

use super::{Partition, StoreFuture};
use crate::bans::{Ban, BanCursor, BanPage};
use crate::policy::Policy;

/// Keeps the bans that [`Bans`](crate::Bans) shows.
///
/// Both stores of this crate do.
pub trait BanStore: Send + Sync + 'static {
    /// Returns the ban of a window's key.
    fn ban(&self, partition: &Partition) -> StoreFuture<Option<Ban>>;

    /// Bans a window's key for so long, unless it is banned for longer; returns the ban that stands.
    fn impose(&self, partition: &Partition, duration: Duration, reason: &str) -> StoreFuture<Ban>;

    /// Forgets a window's key's ban, strikes and rungs, and says whether there was any.
    fn lift(&self, partition: &Partition) -> StoreFuture<bool>;

    /// Returns about `count` keys that a policy has banned, from a cursor on.
    ///
    /// The first page begins at [`BanCursor::default`]. All pages together hold each key that was
    /// banned all the while.
    fn page(&self, policy: &Arc<Policy>, cursor: BanCursor, count: usize) -> StoreFuture<BanPage>;
}
