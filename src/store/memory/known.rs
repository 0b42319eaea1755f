//! What a [`MemoryStore`] that stands in for another store knows of a log.

use std::time::Duration;

use super::{MemoryStore, standing_key};
use crate::error::StoreError;
use crate::store::{Admission, Check, KnownBan, KnownLog, Partition};
use crate::window::micros;

impl MemoryStore {
    /// Records an admission by another store, so long ago.
    pub(in crate::store) fn record(&self, check: &Check, age: Duration) -> Result<(), StoreError> {
        self.0.with_room(&check.partitions, || self.0.try_record(check, micros(age)))
    }

    /// Returns how many entries a log has, some of which may have left its window.
    pub(in crate::store) fn log_len(&self, partition: &Partition) -> usize {
        let hash = self.0.hash(partition);
        let shard = self.0.lock(super::shard_of(hash));
        shard.find(hash, partition).map_or(0, |slot| shard.window(slot).log.len())
    }

    /// Returns the admissions that are known of a log and take about so many places, oldest first,
    /// and the timestamp from which it goes on if these are not all; with the first of them the ban
    /// of the log's key.
    pub(in crate::store) fn known_after(
        &self,
        partition: &Partition,
        after_us: Option<u64>,
        most: usize,
    ) -> (KnownLog, Option<u64>) {
        let ban = if after_us.is_none() { self.known_ban(partition) } else { None };
        let hash = self.0.hash(partition);
        let shard = self.0.lock(super::shard_of(hash));
        let now_us = self.0.now_us();
        let Some(slot) = shard.find(hash, partition) else {
            return (KnownLog { admissions: Vec::new(), ban }, None);
        };
        let mut entries = shard.window(slot).log.live(now_us, partition.policy.horizon_us());
        if let Some(after_us) = after_us {
            entries = &entries[entries.partition_point(|entry| entry.at_us <= after_us)..];
        }
        let mut admissions: Vec<Admission> = Vec::new();
        let mut last_us = None;
        for (places, entry) in entries.iter().enumerate() {
            // All of one instant belong together.
            if places >= most && last_us != Some(entry.at_us) {
                return (KnownLog { admissions, ban }, last_us);
            }
            last_us = Some(entry.at_us);
            match admissions.last_mut() {
                // The entries of one request have one timestamp.
                Some(admission) if admission.id == entry.id => admission.cost += 1,
                _ => {
                    let age = Duration::from_micros(now_us.saturating_sub(entry.at_us));
                    admissions.push(Admission { id: entry.id, cost: 1, age, confirmed: true });
                }
            }
        }
        (KnownLog { admissions, ban }, None)
    }

    /// Returns the ban of a log's key, if its policy enforces bans.
    pub(in crate::store) fn known_ban(&self, partition: &Partition) -> Option<KnownBan> {
        partition.policy.penalty_for_strikes()?;
        let key = standing_key(&partition.policy, partition.key.as_bytes());
        self.0.standings.look(&key, |standing, now_us| {
            let wait_us = standing.wait_us(now_us);
            (wait_us > 0).then(|| KnownBan {
                remaining: Duration::from_micros(wait_us),
                reason: standing.reason.clone(),
                seen: Duration::from_micros(now_us.saturating_sub(standing.seen_us)),
                seen_there: standing.seen_there_us.map(Duration::from_micros),
            })
        })?
    }

    /// Forgets the admissions of a log that are at least so old: another process has reset it.
    pub(in crate::store) fn forget_older(&self, partition: &Partition, age: Duration) {
        let hash = self.0.hash(partition);
        let mut shard = self.0.lock(super::shard_of(hash));
        let until_us = self.0.now_us().saturating_sub(micros(age));
        if let Some(slot) = shard.find(hash, partition) {
            shard.window_mut(slot).log.remove_until(until_us);
        }
    }
}
