//! How a [`MemoryStore`](super::MemoryStore) decides and records. It holds the locks of all logs
//! meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::shard::{self, Locked};
use super::{Inner, MemoryStore, VISITED_AT_ONCE};
use crate::error::StoreError;
use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, QuotaState};

impl MemoryStore {
    /// Returns what a check decides, and records it if `record` is set. Reports nothing, so that the
    /// caller may hold a lock.
    pub(in crate::store) fn decide(
        &self,
        check: &Check,
        record: bool,
    ) -> Result<Outcome, StoreError> {
        let inner = &self.0;
        let has_penalty = |log: &LogId| log.policy.get_penalty().is_some();
        if record
            && inner.bans.load(Ordering::Relaxed) + check.logs.len() > inner.capacity
            && check.logs.iter().any(has_penalty)
        {
            // For strikes. A denial whose strike has no room stays one.
            inner.make_room();
        }
        let decided = inner.make_room_for(|| inner.try_decide(check, record));
        if decided.is_err() {
            inner.refused.fetch_add(1, Ordering::Relaxed);
        }
        decided
    }
}

impl Inner {
    /// Decides, or returns [`StoreError::Full`].
    fn try_decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        let mut locked = self.lock_all(&check.logs);
        // Read under the lock, so that the timestamps of one log never step back.
        let now_us = self.now_us();
        let mut slots = SmallVec::<[Option<u32>; 2]>::new();
        let mut outcomes = SmallVec::<[LogOutcome; 2]>::new();
        for (index, (log, cost)) in check.costs().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            let entries = slot.map_or(&shard::EMPTY, |slot| &shard.logs[slot].entries);
            outcomes.push(entries.outcome(log, check.id, now_us, cost));
            slots.push(slot);
        }
        let mut outcome = Outcome::new(true, outcomes);
        outcome.timestamp = Some(Duration::from_micros(now_us));
        self.apply_penalties(&mut locked, check, now_us, &mut outcome, record);
        outcome.admitted = outcome.fits();
        if !outcome.admitted || !record || check.cost == 0 {
            return Ok(outcome);
        }
        let costs = || check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0);
        self.reserve(costs().filter(|(index, _)| slots[*index].is_none()).count())?;
        for (index, (log, cost)) in costs() {
            let (shard, hash) = locked.shard(index);
            let slot = slots[index].unwrap_or_else(|| shard.insert(hash, log, now_us, 0));
            let stored = &mut shard.logs[slot];
            stored.add(log, check.id, now_us, cost);
            stored.doubted_us = now_us;
            let states = outcome.logs_mut()[index].quotas_mut();
            for (quota, state) in log.policy.quotas().iter().zip(states) {
                let wait_us = state.wait_us;
                *state = QuotaState { wait_us, ..stored.entries.state(now_us, *quota, 1) };
            }
        }
        // Only after all logs have recorded the request: an expired log of the check must not be
        // dropped before.
        for index in 0..check.logs.len() {
            self.drop_expired(locked.shard(index).0, now_us, VISITED_AT_ONCE);
        }
        Ok(outcome)
    }

    /// Sets the ban of each log, and counts a denial by a full quota as a strike if `record` is set.
    ///
    /// If there are as many ban records as there may be, the strike is lost and the denial stays.
    fn apply_penalties(
        &self,
        locked: &mut Locked<'_>,
        check: &Check,
        now_us: u64,
        outcome: &mut Outcome,
        record: bool,
    ) {
        for (index, log) in check.logs.iter().enumerate() {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let log_outcome = &mut outcome.logs_mut()[index];
            let full = (log_outcome.longest_full_window_us(&log.policy), penalty);
            let (shard, hash) = locked.shard(index);
            let ban = self.change_ban(shard, hash, log, now_us, |ban_record| {
                BanState::of(ban_record, now_us, check.id, full, record)
            });
            match ban {
                Ok(ban) => log_outcome.set_ban(ban),
                Err(_) => drop(self.strikes_lost.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}
