//! How a [`MemoryStore`](super::MemoryStore) decides and records. It holds the locks of all logs
//! meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::shard::{self, Locked, Shard};
use super::{DROPPED_PER_ADMISSION, Inner};
use crate::error::StoreError;
use crate::window::{BanState, Check, Entry, LogId, LogOutcome, Outcome};

impl Inner {
    /// Decides without reporting anything, so that the caller may hold a lock.
    pub(super) fn decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        self.with_room(|| self.try_decide(check, record))
    }

    fn try_decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        let id = check.id;
        let mut locked = self.lock_all(&check.logs);
        // Read under the lock, so that the timestamps of one log never step back.
        let now_us = self.now_us();
        let mut recorded_us = None;
        let mut slots = SmallVec::<[Option<u32>; 1]>::new();
        let mut outcomes = SmallVec::<[LogOutcome; 1]>::new();
        for (index, log) in check.logs.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, log);
            slots.push(slot);
            let entries = slot.map_or(&shard::EMPTY, |slot| &shard.log(slot).entries);
            if check.repeated {
                let retention_us = log.policy.retention_us();
                recorded_us = recorded_us.or_else(|| entries.find(id, now_us, retention_us));
            }
            let cost = check.cost_in(index);
            let state = |quota| entries.state(now_us, quota, cost);
            outcomes.push(LogOutcome::of(&log.policy, state));
        }
        let timestamp = Duration::from_micros(recorded_us.unwrap_or(now_us));
        let mut outcome = Outcome::from_logs(true, outcomes);
        outcome.timestamp = Some(timestamp);
        if recorded_us.is_some() {
            for state in outcome.logs_mut().iter_mut().flat_map(LogOutcome::states_mut) {
                state.wait_us = 0;
            }
            return Ok(outcome);
        }
        self.apply_penalties(&mut locked, check, now_us, &mut outcome, record);
        outcome.admitted = outcome.fits();
        if !outcome.admitted || !record || check.cost == 0 {
            return Ok(outcome);
        }
        let is_absent =
            |(index, slot): &(usize, &Option<u32>)| slot.is_none() && check.cost_in(*index) > 0;
        let absent = slots.iter().enumerate().filter(is_absent).count();
        if absent > 0 && !self.reserve(absent) {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        for (index, ((log, cost), slot)) in check.costs().zip(slots).enumerate() {
            if cost == 0 {
                continue;
            }
            let (shard, hash) = locked.shard(index);
            let slot = slot.unwrap_or_else(|| self.insert(shard, hash, log, now_us, 0));
            shard.log_mut(slot).add(Entry { at_us: now_us, id }, now_us, cost);
            outcome.logs_mut()[index].count(&log.policy, cost);
        }
        // Only after all logs have recorded the request: an expired log of the check must not be
        // dropped before.
        for index in 0..check.logs.len() {
            self.drop_expired(locked.shard(index).0, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(outcome)
    }

    /// Sets the ban of each log, and counts a denial by a full quota as a strike if `record` is set.
    ///
    /// If there are as many ban records as there may be, the strike is lost and the denial stays. Expired
    /// records make room for the next one.
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
                Err(_) => {
                    self.strikes_lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Records a request in all of its logs, at an instant that is not later than now.
    ///
    /// It does not read the clock: entries that have expired since that instant can stay for a while.
    /// It searches for the identity only if the check is repeated, because the search takes time
    /// proportional to the length of the log.
    pub(super) fn try_record(
        &self,
        check: &Check,
        at_us: u64,
        loss: u64,
    ) -> Result<(), StoreError> {
        let entry = Entry { at_us, id: check.id };
        let mut locked = self.lock_all(&check.logs);
        for (index, (log, cost)) in check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0) {
            let (shard, hash) = locked.shard(index);
            let slot = self.find_or_insert(shard, hash, log, at_us, loss)?;
            if check.repeated {
                shard.log_mut(slot).restore(entry, at_us, cost);
            } else {
                shard.log_mut(slot).add(entry, at_us, cost);
            }
            self.drop_expired(shard, at_us, DROPPED_PER_ADMISSION);
        }
        Ok(())
    }

    fn find_or_insert(
        &self,
        shard: &mut Shard,
        hash: u64,
        log: &LogId,
        at_us: u64,
        loss: u64,
    ) -> Result<u32, StoreError> {
        match shard.find(hash, log) {
            Some(slot) => Ok(slot),
            None if self.reserve(1) => Ok(self.insert(shard, hash, log, at_us, loss)),
            None => Err(StoreError::Full { capacity: self.capacity }),
        }
    }
}
