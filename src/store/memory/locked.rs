//! [`Locked`]: the shards that a decision holds.

use std::sync::MutexGuard;

use super::shard::Shard;
use super::shard::shard_of;

/// The shards of one decision, locked, and the hashes of its windows.
pub(super) enum Locked<'a> {
    /// Nearly every decision is about one window.
    One(u64, MutexGuard<'a, Shard>),
    Many(Vec<u64>, Vec<(usize, MutexGuard<'a, Shard>)>),
}

impl Locked<'_> {
    /// Returns the shard of the decision's `index`-th window, and the window's hash.
    pub(super) fn shard(&mut self, index: usize) -> (&mut Shard, u64) {
        match self {
            Self::One(hash, guard) => (guard, *hash),
            Self::Many(hashes, guards) => {
                let hash = hashes[index];
                let wanted = shard_of(hash);
                let at = guards.partition_point(|(shard, _)| *shard < wanted);
                (&mut guards[at].1, hash)
            }
        }
    }
}
