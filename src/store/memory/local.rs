//! A [`MemoryStore`] as the local logs of a [`RedisStore`](crate::RedisStore): records what Redis has
//! decided, and tells what this process knows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::shard::StoredLog;
use super::{MemoryStore, VISITED_AT_ONCE};
use crate::time::micros;
use crate::window::{BanRecord, Check, Cost, LogId, LogOutcome};

impl MemoryStore {
    /// Records an admission by Redis at `at`, which is not later than now, whatever the quotas are. Skips a new log for which
    /// there is no room. `loss` is the number of losses of data before it was admitted. Returns whether a log has got a request
    /// since `since` that Redis may not know.
    pub(in crate::store) fn record(
        &self,
        check: &Check,
        at: Instant,
        loss: u64,
        since: Instant,
    ) -> bool {
        let inner = &self.0;
        let (at_us, since_us) = (self.us_at(at), self.us_at(since));
        let (mut is_full, mut is_doubted) = (false, false);
        for (log, cost) in check.costs().filter(|(_, cost)| *cost > 0) {
            let recorded = inner.make_room_for(|| {
                let (hash, mut shard) = inner.lock_one(log);
                let slot = shard.find(hash, log);
                inner.logs.reserve(usize::from(slot.is_none()))?;
                let slot = slot.unwrap_or_else(|| shard.insert(hash, log, at_us, loss));
                shard.logs[slot].add(log, check.id, at_us, cost);
                let is_doubted = shard.logs[slot].doubted_us >= since_us;
                // The clock is not read: entries that have expired since that instant can stay for a while.
                inner.drop_expired(&mut shard, at_us, VISITED_AT_ONCE);
                Ok(is_doubted)
            });
            is_full |= recorded.is_err();
            is_doubted |= recorded.unwrap_or(false);
        }
        if is_full {
            inner.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.report();
        is_doubted
    }

    /// Returns an instant on the clock of the logs and of the ban records.
    pub(in crate::store) fn us_at(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.0.epoch))
    }

    /// Returns whether a log holds more entries than a quota allows.
    pub(in crate::store) fn holds_too_many(&self, check: &Check) -> bool {
        let outcome = self.decide(&check.at_cost(0), false);
        outcome.is_ok_and(|outcome| outcome.logs().iter().any(LogOutcome::is_full))
    }

    /// Reads or changes a log with the present time, if there is one.
    fn with_log<T>(&self, log: &LogId, act: impl FnOnce(&mut StoredLog, u64) -> T) -> Option<T> {
        let (hash, mut shard) = self.0.lock_one(log);
        let slot = shard.find(hash, log)?;
        Some(act(&mut shard.logs[slot], self.0.now_us()))
    }

    /// Returns what a request takes in a log, if the log has it.
    pub(in crate::store) fn cost_of(&self, log: &LogId, id: Uuid) -> Option<u32> {
        self.with_log(log, |stored, _| stored.entries.cost_of(id)).flatten()
    }

    /// Returns whether a log may have been lost since it was last noted that it may.
    pub(in crate::store) fn has_unseen_loss(&self, log: &LogId, losses: u64) -> bool {
        self.with_log(log, |stored, _| stored.loss < losses).unwrap_or(false)
    }

    /// Takes note that Redis may have lost a log. Returns its requests, each with its cost and when it was admitted,
    /// unless that was noted before.
    pub(in crate::store) fn see_loss(
        &self,
        log: &LogId,
        losses: u64,
    ) -> Vec<(Uuid, Cost, Instant)> {
        let see = |stored: &mut StoredLog, now_us| {
            if stored.loss >= losses {
                return Vec::new();
            }
            stored.loss = losses;
            let at = |at_us| self.0.epoch + Duration::from_micros(at_us);
            let live = stored.entries.live(now_us, log.policy.retention_us());
            live.map(|(entry, cost)| (entry.id, cost, at(entry.at_us))).collect()
        };
        self.with_log(log, see).unwrap_or_default()
    }

    /// Takes note that the logs of a check have a request that Redis may not know.
    pub(in crate::store) fn doubt(&self, check: &Check) {
        for log in &check.logs {
            self.with_log(log, |stored, now_us| stored.doubted_us = now_us);
        }
    }

    /// Removes the requests of a log up to an instant, after another process has reset it.
    pub(in crate::store) fn forget_until(&self, log: &LogId, instant: Instant) {
        let reset_us = self.us_at(instant);
        self.with_log(log, |stored, _| stored.entries.remove_until(reset_us));
    }

    /// Returns the record of a ban that stands, which this process has imposed or seen, and the present time.
    pub(in crate::store) fn standing_ban(&self, log: &LogId) -> Option<(BanRecord, u64)> {
        log.policy.get_penalty().filter(|_| self.0.bans.held() > 0)?;
        let (hash, shard) = self.0.lock_one(log);
        let now_us = self.0.now_us();
        let record = shard.ban(hash, log, now_us)?;
        (record.wait_us(now_us) > 0).then(|| (record.clone(), now_us))
    }

    /// Imposes a ban that a call has found in Redis, which was sent at an instant. If there is no room, it is not kept: an
    /// outage then does not know of it.
    pub(in crate::store) fn restore_ban(
        &self,
        log: &LogId,
        length: Duration,
        reason: &str,
        sent: Instant,
    ) {
        let _ = self.with_ban_record(log, |record, now_us| {
            record.impose(now_us, micros(length), reason, log.policy.get_penalty(), false);
            (record.seen_us, record.is_shared) = (self.us_at(sent), true);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limiter, Policy, Quota};

    #[tokio::test(start_paused = true)]
    async fn request_is_recorded_once_if_its_second_log_needs_room() {
        let store = MemoryStore::with_capacity(2);
        let limiter = Limiter::new(Quota::new(5, Duration::from_secs(10)), store.clone());
        assert!(limiter.check("old").await.unwrap().is_admitted());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(limiter.check("a").await.unwrap().is_admitted());
        tokio::time::advance(Duration::from_secs(5)).await;
        let policy = limiter.policy();
        let logs = ["a", "b"].map(|key| LogId::new(std::sync::Arc::<Policy>::clone(&policy), key));
        let now = Instant::now();
        store.record(&Check::new(logs), now, 0, now);
        assert_eq!(limiter.peek("a").await.unwrap().remaining(), 3);
    }

    /// However long a key stays in use.
    #[tokio::test(start_paused = true)]
    async fn log_in_use_drops_expired_entries() {
        let store = MemoryStore::new();
        let limiter = Limiter::new(Quota::per_minute(100), store.clone());
        for _ in 0..200 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(limiter.check("alice").await.unwrap().is_admitted());
        }
        let log = LogId::new(std::sync::Arc::<Policy>::clone(&limiter.policy()), "alice");
        let entries = store.with_log(&log, |stored, _| format!("{:?}", stored.entries)).unwrap();
        assert_eq!(entries.matches("at_us").count(), 60);
    }
}
