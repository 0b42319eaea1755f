//! How a [`MemoryStore`](super::MemoryStore) decides and records. It holds the locks of all logs
//! meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::shard::{self, Locked};
use super::{Inner, MemoryStore, VISITED_AT_ONCE};
use crate::error::StoreError;
use crate::window::{BanState, Check, Entry, LogId, LogOutcome, Outcome};

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
        inner.with_room(|| inner.try_decide(check, record))
    }
}

impl Inner {
    /// Decides, or returns [`StoreError::Full`].
    fn try_decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        let mut locked = self.lock_all(&check.logs);
        // Read under the lock, so that the timestamps of one log never step back.
        let now_us = self.now_us();
        let mut outcomes = SmallVec::<[LogOutcome; 2]>::new();
        for (index, log) in check.logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            let entries = slot.map_or(&shard::EMPTY, |slot| &shard.logs[slot].entries);
            outcomes.push(entries.outcome(log, check.id, now_us, check.cost_in(index)));
        }
        let mut outcome = Outcome::new(true, outcomes);
        outcome.timestamp = Some(Duration::from_micros(now_us));
        let strikes_lost = self.apply_penalties(&mut locked, check, now_us, &mut outcome, record);
        self.strikes_lost.fetch_add(strikes_lost, Ordering::Relaxed);
        outcome.admitted = outcome.fits();
        if !outcome.admitted || !record || check.cost == 0 {
            return Ok(outcome);
        }
        self.add_to(&mut locked, check, now_us, 0)?;
        for (index, (log, _)) in check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0) {
            let outcome = &mut outcome.logs_mut()[index];
            let (shard, hash) = locked.shard(index);
            let Some(slot) = shard.find(hash, log) else { continue };
            shard.logs[slot].doubted_us = now_us;
            for (quota, state) in log.policy.quotas().iter().zip(outcome.quotas_mut()) {
                let wait_us = state.wait_us;
                *state = shard.logs[slot].entries.state(now_us, *quota, 1);
                state.wait_us = wait_us;
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
    /// If there are as many ban records as there may be, the strike is lost and the denial stays. Returns how
    /// many strikes are lost.
    fn apply_penalties(
        &self,
        locked: &mut Locked<'_>,
        check: &Check,
        now_us: u64,
        outcome: &mut Outcome,
        record: bool,
    ) -> usize {
        let mut strikes_lost = 0;
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
                Err(_) => strikes_lost += 1,
            }
        }
        strikes_lost
    }

    /// Records a request in all of its logs, at an instant that is not later than now. Returns whether one of them has got a
    /// request that Redis may not know since `since_us`.
    ///
    /// It does not read the clock: entries that have expired since that instant can stay for a while.
    pub(super) fn try_record(
        &self,
        check: &Check,
        at_us: u64,
        loss: u64,
        since_us: u64,
    ) -> Result<bool, StoreError> {
        let mut locked = self.lock_all(&check.logs);
        self.add_to(&mut locked, check, at_us, loss)?;
        let mut is_doubted = false;
        for (index, log) in check.logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            is_doubted |= slot.is_some_and(|slot| shard.logs[slot].doubted_us >= since_us);
            self.drop_expired(shard, at_us, VISITED_AT_ONCE);
        }
        Ok(is_doubted)
    }

    /// Adds a request to the logs in which it takes a place, and makes those that are absent. Without room for
    /// all of them nothing changes.
    fn add_to(
        &self,
        locked: &mut Locked<'_>,
        check: &Check,
        at_us: u64,
        loss: u64,
    ) -> Result<(), StoreError> {
        let costs = || check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0);
        let is_absent = |(index, (log, _)): &(usize, (&LogId, u32))| {
            let (shard, hash) = locked.shard(*index);
            shard.find(hash, log).is_none()
        };
        let absent = costs().filter(is_absent).count();
        if absent > 0 && !self.reserve(absent) {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        for (index, (log, cost)) in costs() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            let slot = slot.unwrap_or_else(|| shard.insert(hash, log, at_us, loss));
            let entry = Entry { at_us, id: log.entry_id(check.id) };
            shard.logs[slot].add(entry, at_us, log.kept_cost(cost), !log.policy.refreshes());
        }
        Ok(())
    }
}
