//! How a [`MemoryStore`](super::MemoryStore) explains a log.

use super::{Inner, shard};
use crate::window::{BanRecord, Explanation, LogId, MAX_LISTED};

impl Inner {
    pub(super) fn explain(&self, log: &LogId, cost: u32) -> Explanation {
        let (hash, shard) = self.lock_one(log);
        let now_us = self.now_us();
        let slot = shard.find(hash, log);
        let entries = slot.map_or(&shard::EMPTY, |slot| &shard.log(slot).entries);
        let read = |quota| entries.read(log, now_us, quota, cost, MAX_LISTED);
        let explanation = Explanation::of(log, cost, now_us, read).with_store("memory");
        let Some(penalty) = log.policy.get_penalty() else { return explanation };
        explanation.with_ban(match shard.ban(hash, log, now_us) {
            Some(record) => record.explain(now_us, penalty),
            None => BanRecord::default().explain(0, penalty),
        })
    }
}
