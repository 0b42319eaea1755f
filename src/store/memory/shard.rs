//! [`Shard`]: a part of a store's logs, with the order in which they expire.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, MutexGuard};

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use crate::policy::Policy;
use crate::window::{Entry, Log, LogId};

pub(super) const SHARDS: usize = 64;

pub(super) static EMPTY: Log = Log::new();

pub(super) struct StoredLog {
    pub(super) entries: Log,
    /// Short keys are inline: to follow a pointer costs as much as the rest of a look-up.
    key: SmallVec<[u8; 24]>,
    /// The policy of the last decision, or one of the same name whose longer window was in use before. Its
    /// longest window says how long entries are kept.
    policy: Arc<Policy>,
    /// When the log comes due: the instant of its entry in `Shard::expiries`. It is not later than the
    /// expiry, unless the newest entry was cancelled.
    due_us: u64,
}

impl StoredLog {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.policy.shares_logs_with(&log.policy)
    }

    pub(super) fn add(&mut self, entry: Entry, now_us: u64, cost: u32) {
        self.entries.compact(now_us, self.policy.longest_window_us());
        self.entries.add(entry, cost, highest_limit(&self.policy));
    }

    pub(super) fn restore(&mut self, entry: Entry, now_us: u64, cost: u32, raise: bool) -> u32 {
        self.entries.remove_expired(now_us, self.policy.longest_window_us());
        self.entries.restore(entry, cost, highest_limit(&self.policy), raise)
    }

    pub(super) fn is_expired(&self, now_us: u64) -> bool {
        self.expires_us() <= now_us
    }

    pub(super) fn due_us(&self) -> u64 {
        self.due_us
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

/// Logs by hash, and by the instant at which they come due: the shard then checks whether the log has
/// expired.
#[derive(Default)]
pub(super) struct Shard {
    by_hash: HashTable<u32>,
    logs: Slab<StoredLog>,
    /// The due instant and the slot of each log, and stale entries of logs that were removed early. An
    /// entry is corrected when it comes due, not when its log is used again.
    expiries: BinaryHeap<Reverse<Due>>,
}

/// When the log of a slot comes due. Packed, so that it takes 12 bytes instead of 16 for each log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct Due {
    at_us: u64,
    slot: u32,
}

impl Shard {
    pub(super) fn find(&self, hash: u64, log: &LogId) -> Option<u32> {
        self.by_hash.find(hash, |slot| self.logs[*slot as usize].is(log)).copied()
    }

    pub(super) fn due_us(&self) -> u64 {
        self.expiries.peek().map_or(u64::MAX, |Reverse(due)| due.at_us)
    }

    pub(super) fn log(&self, slot: u32) -> &StoredLog {
        &self.logs[slot as usize]
    }

    pub(super) fn log_mut(&mut self, slot: u32) -> &mut StoredLog {
        &mut self.logs[slot as usize]
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
        let stored = StoredLog { entries: Log::new(), key, policy, due_us };
        let slot = self.logs.insert(stored) as u32;
        let logs = &self.logs;
        self.by_hash.insert_unique(hash, slot, |slot| hash_of(&logs[*slot as usize], hasher));
        self.expiries.push(Reverse(Due { at_us: due_us, slot }));
        slot
    }

    /// Sets the policy of a log, which says how long to keep the entries from now on.
    ///
    /// A longer window needs entries that the shorter one would drop. With a shorter window the log
    /// expires earlier.
    pub(super) fn set_policy(&mut self, slot: u32, policy: &Arc<Policy>) {
        let stored = &mut self.logs[slot as usize];
        stored.policy = policy.clone();
        let expires_us = stored.expires_us();
        if expires_us < stored.due_us {
            stored.due_us = expires_us;
            self.expiries.push(Reverse(Due { at_us: expires_us, slot }));
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
        let longer = self.logs.iter().filter(|(_, stored)| is_longer(stored));
        let slots: Vec<u32> = longer.map(|(slot, _)| slot as u32).collect();
        slots.into_iter().for_each(|slot| self.set_policy(slot, policy));
    }

    pub(super) fn len(&self) -> usize {
        self.logs.len()
    }

    /// Returns the size of the tables, without what the logs have on the heap.
    pub(super) fn fixed_bytes(&self) -> usize {
        self.logs.capacity() * size_of::<StoredLog>()
            + self.by_hash.allocation_size()
            + self.expiries.capacity() * size_of::<Reverse<Due>>()
    }

    /// Returns how many of the first logs there are, and how many bytes they have on the heap.
    pub(super) fn sample_heap(&self, most: usize) -> (usize, usize) {
        let key = |stored: &StoredLog| if stored.key.spilled() { stored.key.capacity() } else { 0 };
        let sample = self.logs.iter().take(most);
        sample.fold((0, 0), |(logs, bytes), (_, stored)| {
            (logs + 1, bytes + key(stored) + stored.entries.heap_bytes())
        })
    }

    pub(super) fn remove(&mut self, hash: u64, log: &LogId) -> bool {
        let same = |slot: &u32| self.logs[*slot as usize].is(log);
        let Ok(found) = self.by_hash.find_entry(hash, same) else {
            return false;
        };
        let (slot, _) = found.remove();
        self.logs.remove(slot as usize);
        // The entry in `expiries` is stale now. Rebuild the heap when most entries are stale.
        if self.expiries.len() > 2 * self.logs.len() + 64 {
            let due = |(slot, stored): (usize, &StoredLog)| {
                Reverse(Due { at_us: stored.due_us, slot: slot as u32 })
            };
            self.expiries = self.logs.iter().map(due).collect();
        }
        true
    }

    pub(super) fn drop_expired(&mut self, now_us: u64, most: usize, hasher: &RandomState) -> usize {
        let mut dropped = 0;
        while dropped < most {
            let Some(Reverse(Due { at_us: due_us, slot })) = self.expiries.peek().copied() else {
                break;
            };
            if due_us > now_us {
                break;
            }
            self.expiries.pop();
            let Some(stored) = self.logs.get_mut(slot as usize) else { continue };
            if stored.due_us != due_us {
                continue;
            }
            let expires_us = stored.expires_us();
            if expires_us > now_us {
                stored.due_us = expires_us;
                self.expiries.push(Reverse(Due { at_us: expires_us, slot }));
                continue;
            }
            let hash = hash_of(stored, hasher);
            if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == slot) {
                found.remove();
            }
            self.logs.remove(slot as usize);
            dropped += 1;
        }
        dropped
    }
}

fn hash_of(stored: &StoredLog, hasher: &RandomState) -> u64 {
    hash(hasher, &stored.policy, &stored.key)
}

pub(super) fn hash(hasher: &RandomState, policy: &Policy, key: &[u8]) -> u64 {
    hasher.hash_one((policy.log_name(), key))
}

/// Returns the shard of a hash. The table in the shard uses the low and the top bits, so the shard is
/// chosen by bits between them.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
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
