//! Decisions, all of whose windows are locked meanwhile.

use smallvec::SmallVec;

use super::shard::{self, Shard};
use super::{DROPPED_PER_ADMISSION, Inner, standing_key};
use crate::error::StoreError;
use crate::penalty::Standing;
use crate::report;
use crate::store::expiring::Keep;
use crate::store::{Admission, BanState, Check, Partition, Struck, Verdict};
use crate::window::{Entry, micros};

impl Inner {
    pub(super) fn decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        self.with_room(&check.partitions, || self.try_decide(check, record))
    }

    fn try_decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        let id = check.id;
        let mut locked = self.lock_all(&check.partitions);
        // Read under the lock, so that the stamps of one window never run backwards.
        let now_us = self.now_us();

        let mut known = None;
        let mut slots = SmallVec::<[Option<u32>; 1]>::new();
        let mut states = SmallVec::new();
        for (index, partition) in check.partitions.iter().enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = shard.find(hash, partition);
            slots.push(slot);
            let log = slot.map_or(&shard::UNUSED, |slot| &shard.window(slot).log);
            if check.repeated {
                known = known.or_else(|| log.find(id, now_us, partition.policy.horizon_us()));
            }
            for quota in partition.policy.judged() {
                states.push(log.state(now_us, quota, check.cost));
            }
        }
        let mut verdict = Verdict::new(true, Some(now_us), states);
        if let Some(at_us) = known {
            verdict.at_us = Some(at_us);
            verdict.states.iter_mut().for_each(|state| state.wait_us = 0);
            return Ok(verdict);
        }
        verdict.admitted = check.fits(&verdict.states);
        self.punish(check, &mut verdict, record);
        if record {
            for (index, slot) in slots.iter().enumerate() {
                if let Some(slot) = slot {
                    self.adopt(locked.shard(index).0, *slot, &check.partitions[index].policy);
                }
            }
        }
        if !verdict.admitted || !record || check.cost == 0 {
            return Ok(verdict);
        }
        let absent = slots.iter().filter(|slot| slot.is_none()).count();
        if absent > 0 && !self.reserve(absent) {
            return Err(StoreError::Full { capacity: self.capacity });
        }

        let mut states = verdict.states.iter_mut();
        for (index, (partition, slot)) in check.partitions.iter().zip(slots).enumerate() {
            let (shard, hash) = locked.shard(index);
            let slot = slot.unwrap_or_else(|| self.insert(shard, hash, partition, now_us));
            shard.window_mut(slot).add(Entry { at_us: now_us, id }, now_us, check.cost);
            for (quota, state) in partition.policy.judged().zip(&mut states) {
                state.remaining = state.remaining.saturating_sub(check.cost);
                if state.reset_us == 0 {
                    state.reset_us = quota.window_us();
                }
            }
        }
        // Not before all are recorded: a window about to be used again is not to be dropped.
        for index in 0..check.partitions.len() {
            self.drop_expired(locked.shard(index).0, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(verdict)
    }

    /// Denies what is banned, and counts a denial by a full quota as a strike if it is to be.
    ///
    /// A denial stays one where the table of ban records is full: then the strike is not counted.
    fn punish(&self, check: &Check, verdict: &mut Verdict, count: bool) {
        for (place, partition) in check.partitions.iter().enumerate() {
            let Some(penalty) = partition.policy.penalty_for_strikes() else { continue };
            let full_us = check.longest_full_us(place, &verdict.states);
            let look = |standing: &mut Standing, now_us: u64| {
                let mut struck = Struck::No;
                if standing.wait_us(now_us) > 0 {
                    verdict.admitted = false;
                } else if full_us > 0 && count {
                    let rungs_us = penalty.rungs_us(check.id);
                    struck = standing.strike(now_us, check.id, full_us, penalty, &rungs_us);
                }
                let over_us = standing.over_us(penalty);
                let keep = if over_us > now_us { Keep::Until(over_us) } else { Keep::Not };
                (BanState::new(place, standing.wait_us(now_us), struck), keep)
            };
            let key = standing_key(&partition.policy, partition.key.as_bytes());
            match self.standings.update(&key, look) {
                Ok(ban) if ban.matters() => verdict.bans.push(ban),
                Ok(_) => {}
                Err(error) => report::strike_lost(&error),
            }
        }
    }

    /// Records a request in all of its logs, whatever the quotas say.
    ///
    /// Looks for its identity only if it may be there already: that can take as long as the log is.
    pub(super) fn try_record(&self, check: &Check, age_us: u64) -> Result<(), StoreError> {
        let mut locked = self.lock_all(&check.partitions);
        let now_us = self.now_us();
        let entry = Entry { at_us: now_us.saturating_sub(age_us), id: check.id };
        for (index, partition) in check.partitions.iter().enumerate() {
            if check.cost == 0 || age_us >= partition.policy.horizon_us() {
                continue;
            }
            let (shard, hash) = locked.shard(index);
            let slot = self.find_or_insert(shard, hash, partition, entry.at_us)?;
            if check.repeated {
                shard.window_mut(slot).restore(entry, now_us, check.cost, true);
            } else {
                shard.window_mut(slot).add(entry, now_us, check.cost);
            }
            self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(())
    }

    /// Records what another process knows of a log, and returns how many entries it lacked.
    pub(super) fn try_restore(
        &self,
        partition: &Partition,
        admissions: &[Admission],
    ) -> Result<u32, StoreError> {
        let mut locked = self.lock_all(std::slice::from_ref(partition));
        let now_us = self.now_us();
        let (shard, hash) = locked.shard(0);
        let mut added = 0;
        for admission in admissions {
            let age_us = micros(admission.age);
            if admission.cost == 0 || age_us >= partition.policy.horizon_us() {
                continue;
            }
            // What was admitted before there was a store is counted from its creation.
            let entry = Entry { at_us: now_us.saturating_sub(age_us), id: admission.id };
            let slot = self.find_or_insert(shard, hash, partition, entry.at_us)?;
            let window = shard.window_mut(slot);
            added += window.restore(entry, now_us, admission.cost, !admission.confirmed);
        }
        self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        Ok(added)
    }

    /// Returns the slot of a log, which is made if there is none and room for it.
    fn find_or_insert(
        &self,
        shard: &mut Shard,
        hash: u64,
        partition: &Partition,
        at_us: u64,
    ) -> Result<u32, StoreError> {
        match shard.find(hash, partition) {
            Some(slot) => {
                self.adopt(shard, slot, &partition.policy);
                Ok(slot)
            }
            None if self.reserve(1) => Ok(self.insert(shard, hash, partition, at_us)),
            None => Err(StoreError::Full { capacity: self.capacity }),
        }
    }
}
