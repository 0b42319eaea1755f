//! A [`MemoryStore`] as the local replacement of another store: records its admissions and reads them
//! back.

use std::time::Duration;

use tokio::time::Instant;

use super::{MemoryStore, ban_record_key};
use crate::error::StoreError;
use crate::store::{Admission, BanSnapshot, LogSnapshot};
use crate::time::micros;
use crate::window::{Check, LogId};

impl MemoryStore {
    /// Records a request in all of its logs, as admitted at an instant, whatever the quotas are.
    pub(in crate::store) fn record(&self, check: &Check, at: Instant) -> Result<(), StoreError> {
        let at_us = micros(at.saturating_duration_since(self.0.epoch));
        self.0.with_room(&check.logs, || self.0.try_record(check, at_us))
    }

    /// Returns the number of entries of a log. Some may have left its longest window.
    pub(in crate::store) fn log_len(&self, log: &LogId) -> usize {
        let (hash, shard) = self.0.lock_one(log);
        shard.find(hash, log).map_or(0, |slot| shard.log(slot).entries.len())
    }

    /// Returns a part of a log: admissions after the timestamp `after_us` that take about `most`
    /// places, oldest first. The second value is the `after_us` of the next part, or `None` if this is
    /// the last one.
    ///
    /// The first part, with `after_us` of `None`, has the ban of the log's key.
    pub(in crate::store) fn snapshot_after(
        &self,
        log: &LogId,
        after_us: Option<u64>,
        most: usize,
    ) -> (LogSnapshot, Option<u64>) {
        let ban = if after_us.is_none() { self.ban_snapshot(log) } else { None };
        let (hash, shard) = self.0.lock_one(log);
        let now_us = self.0.now_us();
        let Some(slot) = shard.find(hash, log) else {
            return (LogSnapshot { admissions: Vec::new(), ban }, None);
        };
        let mut entries = shard.log(slot).entries.live(now_us, log.policy.longest_window_us());
        if let Some(after_us) = after_us {
            entries = &entries[entries.partition_point(|entry| entry.at_us <= after_us)..];
        }
        let mut admissions: Vec<Admission> = Vec::new();
        let mut last_us = None;
        for (places, entry) in entries.iter().enumerate() {
            // Entries of one timestamp must be in one part.
            if places >= most && last_us != Some(entry.at_us) {
                return (LogSnapshot { admissions, ban }, last_us);
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
        (LogSnapshot { admissions, ban }, None)
    }

    pub(in crate::store) fn ban_snapshot(&self, log: &LogId) -> Option<BanSnapshot> {
        log.policy.get_penalty()?;
        let key = ban_record_key(&log.policy, log.key.as_bytes());
        self.0.ban_records.read(&key, |record, now_us| {
            let wait_us = record.wait_us(now_us);
            (wait_us > 0).then(|| BanSnapshot {
                remaining: Duration::from_micros(wait_us),
                reason: record.reason.clone(),
                age: Duration::from_micros(now_us.saturating_sub(record.last_seen_us)),
                store_timestamp: record.store_timestamp_us.map(Duration::from_micros),
            })
        })?
    }

    /// Removes the admissions of a log that are at least `age` old, after another process has reset it.
    pub(in crate::store) fn forget_older(&self, log: &LogId, age: Duration) {
        let (hash, mut shard) = self.0.lock_one(log);
        let reset_us = self.0.now_us().saturating_sub(micros(age));
        if let Some(slot) = shard.find(hash, log) {
            shard.log_mut(slot).entries.remove_until(reset_us);
        }
    }
}
