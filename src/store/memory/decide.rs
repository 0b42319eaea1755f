//! Decisions, all of whose windows are locked meanwhile.

use smallvec::SmallVec;

use super::{DROPPED_PER_ADMISSION, Inner, shard, standing_key};
use crate::error::StoreError;
use crate::penalty::Standing;
use crate::store::expiring::Keep;
use crate::store::{BanState, Check, Struck, Verdict};
use crate::window::Entry;

impl Inner {
    pub(super) fn decide(&self, check: &Check, record: bool) -> Result<Verdict, StoreError> {
        self.with_room(|| self.try_decide(check, record))
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
        self.punish(check, &mut verdict, record)?;
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
            shard.window_mut(slot).add(Entry { at_us: now_us, id }, check.cost, &partition.policy);
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
    fn punish(&self, check: &Check, verdict: &mut Verdict, count: bool) -> Result<(), StoreError> {
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
            let ban = self
                .standings
                .update(&standing_key(&partition.policy, partition.key.as_bytes()), look)?;
            if ban.matters() {
                verdict.bans.push(ban);
            }
        }
        Ok(())
    }

    pub(super) fn try_restore(&self, check: &Check, age_us: u64) -> Result<(), StoreError> {
        let mut locked = self.lock_all(&check.partitions);
        let now_us = self.now_us();
        // What was admitted before there was a store is counted from its creation.
        let entry = Entry { at_us: now_us.saturating_sub(age_us), id: check.id };
        for (index, partition) in check.partitions.iter().enumerate() {
            if check.cost == 0 || age_us >= partition.policy.horizon_us() {
                continue;
            }
            let (shard, hash) = locked.shard(index);
            let slot = match shard.find(hash, partition) {
                Some(slot) => slot,
                None if self.reserve(1) => self.insert(shard, hash, partition, entry.at_us),
                None => return Err(StoreError::Full { capacity: self.capacity }),
            };
            shard.window_mut(slot).restore(entry, now_us, check.cost, &partition.policy);
            self.drop_expired(shard, now_us, DROPPED_PER_ADMISSION);
        }
        Ok(())
    }
}
