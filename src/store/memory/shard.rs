//! [`Shard`]: a part of a store's logs and ban records.

use std::sync::{Arc, MutexGuard};

use smallvec::SmallVec;
use uuid::Uuid;

use super::bans::StoredBan;
use super::slots::{Slots, shard_of};
use crate::policy::Logs;
use crate::window::{Log, LogId};

pub(super) static EMPTY: Log = Log::new();

pub(super) struct StoredLog {
    pub(super) entries: Log,
    /// Short keys are inline: to follow a pointer costs as much as the rest of a look-up.
    key: SmallVec<[u8; 24]>,
    /// Not the policy: a request may have one of its own.
    of: Arc<Logs>,
    /// The number of losses of data in Redis after which Redis was last known to have the log.
    pub(super) loss: u64,
    /// When it last got a request that Redis may not know: this store has admitted it itself, or Redis has lost it since.
    pub(super) doubted_us: u64,
}

impl StoredLog {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.of == *log.policy.logs()
    }

    /// Adds a request at an instant.
    pub(super) fn add(&mut self, log: &LogId, request: Uuid, at_us: u64, cost: u32) {
        self.entries.remove_expired(at_us, self.of.retention_us);
        self.entries.record(log, request, at_us, cost);
    }

    pub(super) fn expires_us(&self) -> u64 {
        self.entries.newest_us().map_or(0, |newest| newest + self.of.retention_us)
    }
}

/// The logs and the ban records of some keys. Each comes due when it may have expired.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) logs: Slots<StoredLog>,
    pub(super) bans: Slots<StoredBan>,
}

impl Shard {
    /// Returns the slot of a log. `hash` is that of its key.
    pub(super) fn find(&self, hash: u64, log: &LogId) -> Option<u32> {
        self.logs.find(hash, |stored| stored.is(log))
    }

    /// Inserts a log whose first entry will be at `at_us`, and returns its slot.
    pub(super) fn insert(&mut self, hash: u64, log: &LogId, at_us: u64, loss: u64) -> u32 {
        let of = log.policy.logs().clone();
        let due_us = at_us + of.retention_us;
        let key = SmallVec::from_slice(log.key.as_bytes());
        let stored = StoredLog { entries: Log::new(), key, of, loss, doubted_us: 0 };
        self.logs.insert(hash, stored, due_us)
    }

    /// Keeps a log from coming due later than it expires, as it would after its newest entry was removed.
    pub(super) fn set_due(&mut self, slot: u32) {
        let expires_us = self.logs[slot].expires_us();
        self.logs.lower_due(slot, expires_us);
    }
}

/// The locked shards of some logs, and the hash of the key of each.
pub(super) struct Locked<'a> {
    pub(super) hashes: SmallVec<[u64; 2]>,
    /// In ascending order.
    pub(super) shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
}

impl Locked<'_> {
    /// Returns the shard of the log of an index, and the hash of its key.
    pub(super) fn shard(&mut self, index: usize) -> (&mut Shard, u64) {
        let hash = self.hashes[index];
        let at = self.shards.partition_point(|(shard, _)| *shard < shard_of(hash));
        (&mut self.shards[at].1, hash)
    }
}
