//! The pure algorithm with a clock of its own, as a store would be.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::step::HORIZON_US;
use crate::penalty::Standing;
use crate::store::{BanState, Check, KnownBan, Partition, Struck, Verdict};
use crate::window::{Entry, Log, QuotaState, micros};

fn name(partition: &Partition) -> (String, Vec<u8>) {
    (partition.policy.window_name().to_owned(), partition.key.as_bytes().to_owned())
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) now_us: u64,
    logs: HashMap<(String, Vec<u8>), Log>,
    standings: HashMap<(String, Vec<u8>), Standing>,
}

impl Model {
    pub(super) fn at(now_us: u64) -> Self {
        Self { now_us, ..Self::default() }
    }

    pub(super) fn log(&mut self, partition: &Partition) -> &mut Log {
        self.logs.entry(name(partition)).or_default()
    }

    fn standing(&mut self, partition: &Partition) -> &mut Standing {
        self.standings.entry(name(partition)).or_default()
    }

    pub(super) fn decide(&mut self, check: &Check, record: bool) -> Verdict {
        let (now_us, id) = (self.now_us, check.id);
        // The shorter script forgets only when it admits, which shows if the clock runs back.
        let plain = record && check.cost == 1 && !check.repeated && !check.wants_stamp;
        let mut known = None;
        let mut states = SmallVec::<[QuotaState; 2]>::new();
        for partition in &check.partitions {
            let log = self.log(partition);
            if !plain {
                log.forget_all(now_us, HORIZON_US);
            }
            known = known.or_else(|| log.find(id, now_us, HORIZON_US).filter(|_| check.repeated));
            let judged = partition.policy.judged();
            states.extend(judged.map(|quota| log.state(now_us, quota, check.cost)));
        }
        let mut bans = SmallVec::<[BanState; 0]>::new();
        for (place, partition) in check.partitions.iter().enumerate() {
            if let Some(penalty) = partition.policy.penalty_for_strikes()
                && known.is_none()
            {
                let standing = self.standing(partition);
                let full_us = check.longest_full_us(place, &states);
                let struck = match standing.wait_us(now_us) {
                    0 if full_us > 0 && record => {
                        standing.strike(now_us, id, full_us, penalty, &penalty.rungs_us(id))
                    }
                    _ => Struck::No,
                };
                bans.push(BanState::new(place, standing.wait_us(now_us), struck));
            }
        }
        bans.retain(|ban| ban.matters());
        let fits = check.fits(&states) && bans.iter().all(|ban| ban.wait_us == 0);
        let admitted = fits || known.is_some();
        if admitted && known.is_none() && record {
            let mut states = states.iter_mut();
            for partition in &check.partitions {
                let log = self.log(partition);
                log.forget_all(now_us, HORIZON_US);
                log.add(Entry { at_us: now_us, id }, check.cost, 0);
                for (quota, state) in partition.policy.judged().zip(&mut states) {
                    let wait_us = state.wait_us;
                    *state = QuotaState { wait_us, ..log.state(now_us, quota, 1) };
                }
            }
        }
        if known.is_some() {
            states.iter_mut().for_each(|state| state.wait_us = 0);
        }
        Verdict { bans, ..Verdict::new(admitted, Some(known.unwrap_or(now_us)), states) }
    }

    pub(super) fn restore(&mut self, check: &Check, age_us: u64, raises: bool) -> u32 {
        let entry = Entry { at_us: self.now_us - age_us, id: check.id };
        let (now_us, mut added) = (self.now_us, 0);
        for partition in &check.partitions {
            let log = self.log(partition);
            // Also what is not recorded has a look taken at the log, which shows if the clock runs back.
            log.forget_all(now_us, HORIZON_US);
            if age_us < HORIZON_US && check.cost > 0 {
                added += log.restore(entry, check.cost, 0, raises);
            }
        }
        added
    }

    pub(super) fn restore_ban(&mut self, partition: &Partition, ban: &KnownBan) {
        let now_us = self.now_us;
        let penalty = partition.policy.penalty_for_strikes();
        self.standing(partition).impose(now_us, micros(ban.remaining), &ban.reason, penalty);
    }

    pub(super) fn cancel(&mut self, check: &Check) -> bool {
        let (now_us, mut was_live) = (self.now_us, false);
        for partition in &check.partitions {
            let log = self.log(partition);
            was_live |= log.find(check.id, now_us, HORIZON_US).is_some();
            log.remove(check.id);
        }
        was_live
    }
}
