//! How a [`MemoryStore`](super::MemoryStore) decides and records. It holds the locks of all logs
//! meanwhile.

use std::time::Duration;

use smallvec::SmallVec;

use super::shard::{self, Shard};
use super::{DROPPED_PER_ADMISSION, Inner, ban_record_key};
use crate::error::StoreError;
use crate::store::Admission;
use crate::store::expiring::Keep;
use crate::telemetry;
use crate::time::micros;
use crate::window::{BanRecord, BanState, Check, Entry, LogId, LogOutcome, Outcome};

impl Inner {
    pub(super) fn decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        self.with_room(&check.logs, || self.try_decide(check, record))
    }

    #[inline]
    fn try_decide(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
        match &check.logs[..] {
            [log] if !check.repeated && log.policy.get_penalty().is_none() => {
                self.try_decide_one(check, log, record)
            }
            _ => self.try_decide_all(check, record),
        }
    }

    /// Decides on a new request in one log without a penalty, as nearly every request is. It takes a
    /// quarter fewer instructions than [`Inner::try_decide_all`].
    #[inline]
    fn try_decide_one(
        &self,
        check: &Check,
        log: &LogId,
        record: bool,
    ) -> Result<Outcome, StoreError> {
        let (hash, mut shard) = self.lock_one(log);
        // Read under the lock, so that the timestamps of one log never step back.
        let now_us = self.now_us();
        let slot = shard.find(hash, log);
        let entries = slot.map_or(&shard::EMPTY, |slot| &shard.log(slot).entries);
        let add = |shard: &mut Shard, admitted: bool| {
            if record && let Some(slot) = slot {
                self.set_policy(shard, slot, &log.policy);
            }
            if !admitted || !record || check.cost == 0 {
                return Ok(false);
            }
            if slot.is_none() && !self.reserve(1) {
                return Err(StoreError::Full { capacity: self.capacity });
            }
            let slot = slot.unwrap_or_else(|| self.insert(shard, hash, log, now_us));
            shard.log_mut(slot).add(Entry { at_us: now_us, id: check.id }, now_us, check.cost);
            self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
            Ok(true)
        };
        // Nearly every policy has one quota, whose state then stays in registers.
        if let ([quota], []) = (log.policy.quotas(), log.policy.candidates()) {
            let mut state = entries.state(now_us, *quota, check.cost);
            let admitted = !state.is_full();
            if add(&mut shard, admitted)? {
                state.count(*quota, check.cost);
            }
            return Ok(Outcome::of_one(admitted, now_us, LogOutcome::of_one(state)));
        }
        let mut log_outcome =
            LogOutcome::of(&log.policy, |quota| entries.state(now_us, quota, check.cost));
        let admitted = !log_outcome.is_full();
        if add(&mut shard, admitted)? {
            log_outcome.count(&log.policy, check.cost);
        }
        Ok(Outcome::of_one(admitted, now_us, log_outcome))
    }

    fn try_decide_all(&self, check: &Check, record: bool) -> Result<Outcome, StoreError> {
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
                let longest_window_us = log.policy.longest_window_us();
                recorded_us = recorded_us.or_else(|| entries.find(id, now_us, longest_window_us));
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
        self.apply_penalties(check, &mut outcome, record);
        outcome.admitted = outcome.fits();
        if record {
            for (index, slot) in slots.iter().enumerate() {
                if let Some(slot) = slot {
                    self.set_policy(locked.shard(index).0, *slot, &check.logs[index].policy);
                }
            }
        }
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
            let slot = slot.unwrap_or_else(|| self.insert(shard, hash, log, now_us));
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
    /// If the map of ban records is full, the strike is lost and the denial stays.
    fn apply_penalties(&self, check: &Check, outcome: &mut Outcome, record: bool) {
        for (log, log_outcome) in check.logs.iter().zip(outcome.logs_mut()) {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let full_us = log_outcome.longest_full_window_us(&log.policy);
            let update = |ban_record: &mut BanRecord, now_us: u64| {
                let full = (full_us, penalty);
                let ban = BanState::of(ban_record, now_us, check.id, full, record);
                let expires_us = ban_record.expires_us(penalty);
                let keep = if expires_us > now_us { Keep::Until(expires_us) } else { Keep::Not };
                (ban, keep)
            };
            let key = ban_record_key(&log.policy, log.key.as_bytes());
            match self.ban_records.update(&key, update) {
                Ok(ban) => log_outcome.set_ban(ban),
                Err(error) => telemetry::strike_lost(&error),
            }
        }
    }

    /// Records a request in all of its logs, at an instant that is not later than now.
    ///
    /// It does not read the clock: entries that have expired since that instant can stay for a while.
    /// It searches for the identity only if the check is repeated, because the search takes time
    /// proportional to the length of the log.
    pub(super) fn try_record(&self, check: &Check, at_us: u64) -> Result<(), StoreError> {
        let entry = Entry { at_us, id: check.id };
        let record = |shard: &mut Shard, hash, log: &LogId, cost| -> Result<(), StoreError> {
            let slot = self.find_or_insert(shard, hash, log, at_us)?;
            if check.repeated {
                shard.log_mut(slot).restore(entry, at_us, cost, true);
            } else {
                shard.log_mut(slot).add(entry, at_us, cost);
            }
            self.drop_expired(shard, at_us, DROPPED_PER_ADMISSION);
            Ok(())
        };
        // Nearly every check has one log.
        if let [log] = &check.logs[..]
            && check.cost > 0
        {
            let (hash, mut shard) = self.lock_one(log);
            return record(&mut shard, hash, log, check.cost);
        }
        let mut locked = self.lock_all(&check.logs);
        for (index, (log, cost)) in check.costs().enumerate().filter(|(_, (_, cost))| *cost > 0) {
            let (shard, hash) = locked.shard(index);
            record(shard, hash, log, cost)?;
        }
        Ok(())
    }

    pub(super) fn try_restore(
        &self,
        log: &LogId,
        admissions: &[Admission],
    ) -> Result<u32, StoreError> {
        let mut locked = self.lock_all(std::slice::from_ref(log));
        let now_us = self.now_us();
        let (shard, hash) = locked.shard(0);
        let mut added = 0;
        for admission in admissions {
            let age_us = micros(admission.age);
            if admission.cost == 0 || age_us >= log.policy.longest_window_us() {
                continue;
            }
            // An admission from before the store's creation counts from its creation.
            let entry = Entry { at_us: now_us.saturating_sub(age_us), id: admission.id };
            let slot = self.find_or_insert(shard, hash, log, entry.at_us)?;
            let stored = shard.log_mut(slot);
            added += stored.restore(entry, now_us, admission.cost, !admission.confirmed);
        }
        self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        Ok(added)
    }

    fn find_or_insert(
        &self,
        shard: &mut Shard,
        hash: u64,
        log: &LogId,
        at_us: u64,
    ) -> Result<u32, StoreError> {
        match shard.find(hash, log) {
            Some(slot) => {
                self.set_policy(shard, slot, &log.policy);
                Ok(slot)
            }
            None if self.reserve(1) => Ok(self.insert(shard, hash, log, at_us)),
            None => Err(StoreError::Full { capacity: self.capacity }),
        }
    }
}
