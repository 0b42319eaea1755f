//! [`Shard`]: some of a store's windows, and the order in which they run out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::Partition;
use crate::window::Log;

/// What a key that has no window yet is judged by.
pub(super) static UNUSED: Log = Log::new();

/// The log of one key under one policy.
pub(super) struct Window {
    pub(super) log: Log,
    pub(super) horizon_us: u64,
    partition: Partition,
    /// When the window's entry in `Shard::expiries` comes due: not after it has run out.
    due_us: u64,
}

impl Window {
    fn expires_us(&self) -> u64 {
        self.log.newest_us().map_or(0, |newest| newest + self.horizon_us)
    }
}

/// Windows by hash, and by when they may have run out.
#[derive(Default)]
pub(super) struct Shard {
    by_hash: HashTable<u32>,
    windows: Slab<Window>,
    /// One entry a window that is true, besides stale ones of windows removed early. An entry is
    /// not moved when its window is used again, but when it comes due.
    expiries: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Shard {
    pub(super) fn find_mut(&mut self, hash: u64, partition: &Partition) -> Option<&mut Window> {
        let slot =
            self.by_hash.find(hash, |slot| self.windows[*slot as usize].partition == *partition)?;
        Some(&mut self.windows[*slot as usize])
    }

    /// Returns the window to add an entry to, which then lives to the policy's present horizon.
    pub(super) fn find_or_insert(
        &mut self,
        hash: u64,
        partition: &Partition,
        now_us: u64,
        hasher: &RandomState,
    ) -> &mut Window {
        let horizon_us = partition.policy.horizon_us();
        let found =
            self.by_hash.find(hash, |slot| self.windows[*slot as usize].partition == *partition);
        let slot = match found {
            Some(slot) => *slot,
            None => {
                let due_us = now_us + horizon_us;
                let slot = self.windows.insert(Window {
                    log: Log::new(),
                    horizon_us,
                    partition: partition.clone(),
                    due_us,
                }) as u32;
                let windows = &self.windows;
                self.by_hash
                    .insert_unique(hash, slot, |slot| hash_of(&windows[*slot as usize], hasher));
                self.expiries.push(Reverse((due_us, slot)));
                slot
            }
        };
        let window = &mut self.windows[slot as usize];
        window.horizon_us = horizon_us;
        window
    }

    /// Forgets a window, and says whether there was one.
    pub(super) fn remove(&mut self, hash: u64, partition: &Partition) -> bool {
        let same = |slot: &u32| self.windows[*slot as usize].partition == *partition;
        let Ok(found) = self.by_hash.find_entry(hash, same) else {
            return false;
        };
        let (slot, _) = found.remove();
        self.windows.remove(slot as usize);
        // The window's expiry stays behind, stale. Half of them stale is enough.
        if self.expiries.len() > 2 * self.windows.len() + 64 {
            let due = |(slot, window): (usize, &Window)| Reverse((window.due_us, slot as u32));
            self.expiries = self.windows.iter().map(due).collect();
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
            let Some(window) = self.windows.get_mut(slot as usize) else { continue };
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
            self.windows.remove(slot as usize);
            dropped += 1;
        }
        dropped
    }
}

fn hash_of(window: &Window, hasher: &RandomState) -> u64 {
    hasher.hash_one(&window.partition)
}
