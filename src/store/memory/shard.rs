//! [`Shard`]: a part of a store's logs.

use std::sync::{Arc, MutexGuard};

use ahash::RandomState;
use smallvec::SmallVec;

use crate::policy::Policy;
use crate::store::slots::{Hashed, Slots, shard_of};
use crate::window::{Entry, Log, LogId};

pub(super) static EMPTY: Log = Log::new();

pub(super) struct StoredLog {
    pub(super) entries: Log,
    /// Short keys are inline: to follow a pointer costs as much as the rest of a look-up.
    key: SmallVec<[u8; 24]>,
    /// The policy of the last decision, or one of the same name whose longer window was in use before. Its
    /// longest window says how long entries are kept.
    policy: Arc<Policy>,
}

impl StoredLog {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.policy.shares_logs_with(&log.policy)
    }

    pub(super) fn add(&mut self, entry: Entry, now_us: u64, cost: u32) {
        self.entries.remove_expired(now_us, self.policy.longest_window_us());
        self.entries.add(entry, cost, highest_limit(&self.policy));
    }

    pub(super) fn restore(&mut self, entry: Entry, now_us: u64, cost: u32, raise: bool) -> u32 {
        self.entries.remove_expired(now_us, self.policy.longest_window_us());
        self.entries.restore(entry, cost, highest_limit(&self.policy), raise)
    }

    pub(super) fn is_expired(&self, now_us: u64) -> bool {
        self.expires_us() <= now_us
    }

    pub(super) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    fn expires_us(&self) -> u64 {
        self.entries.newest_us().map_or(0, |newest| newest + self.policy.longest_window_us())
    }
}

fn highest_limit(policy: &Policy) -> u32 {
    policy.quotas_and_candidates().map(|quota| quota.limit()).max().unwrap_or(0)
}

impl Hashed for StoredLog {
    fn hash(&self, hasher: &RandomState) -> u64 {
        hash(hasher, &self.policy, &self.key)
    }
}

/// A part of the logs. A log comes due when it may have expired.
#[derive(Default)]
pub(super) struct Shard(Slots<StoredLog>);

impl Shard {
    pub(super) fn find(&self, hash: u64, log: &LogId) -> Option<u32> {
        self.0.find(hash, |stored| stored.is(log))
    }

    pub(super) fn log(&self, slot: u32) -> &StoredLog {
        &self.0[slot]
    }

    pub(super) fn log_mut(&mut self, slot: u32) -> &mut StoredLog {
        &mut self.0[slot]
    }

    pub(super) fn next_due_us(&self) -> u64 {
        self.0.next_due_us()
    }

    /// Returns when a log comes due. It is not later than the expiry, unless the newest entry was cancelled.
    pub(super) fn due_us(&self, slot: u32) -> u64 {
        self.0.due_us(slot)
    }

    /// Inserts a log whose first entry will be at `at_us`, and returns its slot.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        log: &LogId,
        at_us: u64,
        hasher: &RandomState,
    ) -> u32 {
        let policy = log.policy.clone();
        let due_us = at_us + policy.longest_window_us();
        let key = SmallVec::from_slice(log.key.as_bytes());
        self.0.insert(hash, StoredLog { entries: Log::new(), key, policy }, due_us, hasher)
    }

    /// Sets the policy of a log, which says how long to keep the entries from now on.
    ///
    /// A longer window needs entries that the shorter one would drop. With a shorter window the log
    /// expires earlier.
    pub(super) fn set_policy(&mut self, slot: u32, policy: &Arc<Policy>) {
        let stored = &mut self.0[slot];
        stored.policy = policy.clone();
        let expires_us = stored.expires_us();
        if expires_us < self.0.due_us(slot) {
            self.0.set_due(slot, expires_us);
        }
    }

    /// Applies a policy to the logs whose policy is an earlier version of it with a longer window.
    /// Another policy of the same name may be in use for other keys.
    pub(super) fn shorten(&mut self, policy: &Arc<Policy>) {
        let is_longer = |stored: &StoredLog| {
            stored.policy.handle().is_same(policy.handle())
                && stored.policy.shares_logs_with(policy)
                && stored.policy.longest_window_us() > policy.longest_window_us()
        };
        let longer = self.0.iter().filter(|(_, stored)| is_longer(stored));
        let slots: Vec<u32> = longer.map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.set_policy(slot, policy));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of the tables, without what the logs have on the heap.
    pub(super) fn table_bytes(&self) -> usize {
        self.0.table_bytes()
    }

    /// Returns how many of the first logs there are, and how many bytes they have on the heap.
    pub(super) fn sample_heap(&self, most: usize) -> (usize, usize) {
        let key = |stored: &StoredLog| if stored.key.spilled() { stored.key.capacity() } else { 0 };
        let sample = self.0.iter().take(most);
        sample.fold((0, 0), |(logs, bytes), (_, stored)| {
            (logs + 1, bytes + key(stored) + stored.entries.heap_bytes())
        })
    }

    pub(super) fn remove(&mut self, hash: u64, log: &LogId) -> bool {
        let slot = self.find(hash, log);
        slot.map(|slot| self.0.remove(hash, slot)).is_some()
    }

    pub(super) fn drop_expired(&mut self, now_us: u64, most: usize, hasher: &RandomState) -> usize {
        let mut dropped = 0;
        while dropped < most
            && let Some(slot) = self.0.take_due(now_us)
        {
            let stored = &self.0[slot];
            let expires_us = stored.expires_us();
            if expires_us > now_us {
                self.0.set_due(slot, expires_us);
            } else {
                self.0.remove(stored.hash(hasher), slot);
                dropped += 1;
            }
        }
        dropped
    }
}

pub(super) fn hash(hasher: &RandomState, policy: &Policy, key: &[u8]) -> u64 {
    hasher.hash_one((policy.log_name_hash(), key))
}

pub(super) enum Locked<'a> {
    /// Nearly every check has one log.
    One(u64, MutexGuard<'a, Shard>),
    /// The shards are in ascending order.
    Many(Vec<u64>, Vec<(usize, MutexGuard<'a, Shard>)>),
}

impl Locked<'_> {
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
