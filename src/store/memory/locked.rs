//! [`Locked`]: the locked shards of a check.

use std::sync::MutexGuard;

use super::shard::Shard;
use super::shard::shard_of;

/// The locked shards of a check, and the hashes of its logs.
pub(super) enum Locked<'a> {
    /// Nearly every check has one log.
    One(u64, MutexGuard<'a, Shard>),
    /// The shards are in ascending order.
    Many(Vec<u64>, Vec<(usize, MutexGuard<'a, Shard>)>),
}

impl Locked<'_> {
    /// Returns the shard and the hash of the check's `index`-th log.
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
