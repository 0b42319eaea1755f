//! [`Shard`]: some of a store's windows, and the order in which they run out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use crate::policy::Policy;
use crate::window::{Entry, Log, LogId};

/// What a key that has no window yet is judged by.
pub(super) static UNUSED: Log = Log::new();

/// The log of one key under one policy.
pub(super) struct StoredLog {
    pub(super) entries: Log,
    /// Inline if it is short: to follow a pointer to it costs as much as the rest.
    key: SmallVec<[u8; 24]>,
    /// As it was at the last decision: it says how long the entries matter.
    policy: Arc<Policy>,
    /// When the window's entry in `Shard::expiries` comes due: not after it has run out.
    due_us: u64,
}

impl StoredLog {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.policy.shares_logs_with(&log.policy)
    }

    /// Records a request.
    pub(super) fn add(&mut self, entry: Entry, now_us: u64, cost: u32) {
        self.entries.compact(now_us, self.policy.longest_window_us());
        self.entries.add(entry, cost, highest_limit(&self.policy));
    }

    /// Records a request that may be there already, see [`Log::restore`].
    pub(super) fn restore(&mut self, entry: Entry, now_us: u64, cost: u32, raises: bool) -> u32 {
        self.entries.remove_expired(now_us, self.policy.longest_window_us());
        self.entries.restore(entry, cost, highest_limit(&self.policy), raises)
    }

    /// Tells whether no entry matters any longer.
    pub(super) fn has_run_out(&self, now_us: u64) -> bool {
        self.expires_us() <= now_us
    }

    /// Returns an instant before which the window does not run out.
    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }

    fn expires_us(&self) -> u64 {
        self.entries.newest_us().map_or(0, |newest| newest + self.policy.longest_window_us())
    }
}

fn highest_limit(policy: &Policy) -> u32 {
    policy.quotas_and_candidates().map(|quota| quota.limit()).max().unwrap_or(0)
}

/// Windows by hash, and by when they may have run out.
#[derive(Default)]
pub(super) struct Shard {
    by_hash: HashTable<u32>,
    logs: Slab<StoredLog>,
    /// One entry a window that is true, besides stale ones of windows removed early. An entry is
    /// not moved when its window is used again, but when it comes due.
    expiries: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Shard {
    /// Returns the slot of a window.
    pub(super) fn find(&self, hash: u64, log: &LogId) -> Option<u32> {
        self.by_hash.find(hash, |slot| self.logs[*slot as usize].is(log)).copied()
    }

    /// Returns an instant before which no window runs out.
    pub(super) fn due_us(&self) -> u64 {
        self.expiries.peek().map_or(u64::MAX, |Reverse((due_us, _))| *due_us)
    }

    /// Returns the window in a slot that `find` or `insert` has returned.
    pub(super) fn log(&self, slot: u32) -> &StoredLog {
        &self.logs[slot as usize]
    }

    /// Returns the window in a slot that `find` or `insert` has returned.
    pub(super) fn log_mut(&mut self, slot: u32) -> &mut StoredLog {
        &mut self.logs[slot as usize]
    }

    /// Makes a window to add an entry of that timestamp to, and returns its slot.
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
        let window = StoredLog { entries: Log::new(), key, policy, due_us };
        let slot = self.logs.insert(window) as u32;
        let logs = &self.logs;
        self.by_hash.insert_unique(hash, slot, |slot| hash_of(&logs[*slot as usize], hasher));
        self.expiries.push(Reverse((due_us, slot)));
        slot
    }

    /// Has the entries of a window matter for as long as `policy` says from now on.
    ///
    /// A denial under a longer window counts on entries that the shorter one would have dropped,
    /// and a window that was shortened is not to keep its place for the old length.
    pub(super) fn adopt(&mut self, slot: u32, policy: &Arc<Policy>) {
        let window = &mut self.logs[slot as usize];
        if Arc::ptr_eq(&window.policy, policy) {
            return;
        }
        window.policy = policy.clone();
        let expires_us = window.expires_us();
        if expires_us < window.due_us {
            window.due_us = expires_us;
            self.expiries.push(Reverse((expires_us, slot)));
        }
    }

    /// Shortens what is kept under an earlier form of a policy to the present one.
    pub(super) fn shorten(&mut self, policy: &Arc<Policy>) {
        let is_longer = |window: &StoredLog| {
            window.policy.shares_logs_with(policy)
                && window.policy.longest_window_us() > policy.longest_window_us()
        };
        let logs = self.logs.iter().filter(|(_, window)| is_longer(window));
        let slots: Vec<u32> = logs.map(|(slot, _)| slot as u32).collect();
        slots.into_iter().for_each(|slot| self.adopt(slot, policy));
    }

    /// Forgets a window, and says whether there was one.
    pub(super) fn remove(&mut self, hash: u64, log: &LogId) -> bool {
        let same = |slot: &u32| self.logs[*slot as usize].is(log);
        let Ok(found) = self.by_hash.find_entry(hash, same) else {
            return false;
        };
        let (slot, _) = found.remove();
        self.logs.remove(slot as usize);
        // The window's expiry stays behind, stale. Half of them stale is enough.
        if self.expiries.len() > 2 * self.logs.len() + 64 {
            let due = |(slot, window): (usize, &StoredLog)| Reverse((window.due_us, slot as u32));
            self.expiries = self.logs.iter().map(due).collect();
        }
        true
    }

    /// Drops up to `most` windows that have run out, and says how many.
    pub(super) fn drop_expired(&mut self, now_us: u64, most: usize, hasher: &RandomState) -> usize {
        let mut dropped = 0;
        while dropped < most {
            let Some(Reverse((due_us, slot))) = self.expiries.peek().copied() else { break };
            if due_us > now_us {
                break;
            }
            self.expiries.pop();
            let Some(window) = self.logs.get_mut(slot as usize) else { continue };
            if window.due_us != due_us {
                continue;
            }
            let expires_us = window.expires_us();
            if expires_us > now_us {
                window.due_us = expires_us;
                self.expiries.push(Reverse((expires_us, slot)));
                continue;
            }
            let hash = hash_of(window, hasher);
            if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == slot) {
                found.remove();
            }
            self.logs.remove(slot as usize);
            dropped += 1;
        }
        dropped
    }
}

fn hash_of(window: &StoredLog, hasher: &RandomState) -> u64 {
    hash(hasher, &window.policy, &window.key)
}

/// Hashes what a window is found by.
pub(super) fn hash(hasher: &RandomState, policy: &Policy, key: &[u8]) -> u64 {
    hasher.hash_one((policy.log_name(), key))
}
