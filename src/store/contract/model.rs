//! [`Model`]: the pure algorithm as a store with its own clock.

use std::collections::HashMap;
use std::time::Duration;

use super::step::LONGEST_WINDOW_US;
use crate::store::BanSnapshot;
use crate::time::micros;
use crate::window::{
    BanRecord, BanState, Check, Entry, Explanation, Log, LogId, LogOutcome, MAX_LISTED, Outcome,
    QuotaState,
};

type Name = (String, Vec<u8>);

fn name(log: &LogId) -> Name {
    (log.policy.log_name().to_owned(), log.key.as_bytes().to_owned())
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) now_us: u64,
    logs: HashMap<Name, Log>,
    ban_records: HashMap<Name, BanRecord>,
}

impl Model {
    pub(super) fn at(now_us: u64) -> Self {
        Self { now_us, ..Self::default() }
    }

    pub(super) fn log(&mut self, log: &LogId) -> &mut Log {
        self.logs.entry(name(log)).or_default()
    }

    fn ban_record(&mut self, log: &LogId) -> &mut BanRecord {
        self.ban_records.entry(name(log)).or_default()
    }

    pub(super) fn decide(&mut self, check: &Check, record: bool) -> Outcome {
        let (now_us, id) = (self.now_us, check.id);
        let (mut recorded_us, mut outcomes) = (None, Vec::new());
        for (log, cost) in check.costs() {
            let entries = self.log(log);
            if !(record && is_short(check, entries, now_us)) {
                entries.remove_expired(now_us, LONGEST_WINDOW_US);
            }
            if check.repeated {
                recorded_us = recorded_us.or_else(|| entries.find(id, now_us, LONGEST_WINDOW_US));
            }
            let state = |quota| entries.state(now_us, quota, cost);
            outcomes.push(LogOutcome::of(&log.policy, state));
        }
        let timestamp = Duration::from_micros(recorded_us.unwrap_or(now_us));
        let mut outcome = Outcome::new(true, outcomes).with_timestamp(timestamp);
        if recorded_us.is_some() {
            let states = outcome.logs_mut().iter_mut().flat_map(LogOutcome::states_mut);
            states.for_each(|state| state.wait_us = 0);
            return outcome;
        }
        for (log, outcome) in check.logs.iter().zip(outcome.logs_mut()) {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let full_us = outcome.longest_full_window_us(&log.policy);
            let ban_record = self.ban_record(log);
            outcome.set_ban(BanState::of(ban_record, now_us, id, (full_us, penalty), record));
        }
        outcome.admitted = outcome.fits();
        let mut at_latest_us = now_us;
        if outcome.admitted && record {
            for ((log, cost), outcome) in check.costs().zip(outcome.logs_mut()) {
                let entries = self.log(log);
                entries.remove_expired(now_us, LONGEST_WINDOW_US);
                // If the clock has stepped back, the entry must not leave before the newest one.
                let at_us = entries.newest_us().map_or(now_us, |newest_us| newest_us.max(now_us));
                entries.add(Entry { at_us, id }, cost, 0);
                at_latest_us = at_latest_us.max(at_us);
                for (quota, state) in log.policy.quotas_and_candidates().zip(outcome.states_mut()) {
                    let wait_us = state.wait_us;
                    *state = QuotaState { wait_us, ..entries.state(now_us, quota, 1) };
                }
            }
        }
        outcome.timestamp = Some(Duration::from_micros(at_latest_us));
        outcome
    }

    pub(super) fn explain(&mut self, log: &LogId, cost: u32) -> Explanation {
        let now_us = self.now_us;
        let entries = self.log(log);
        let read = |quota| entries.read(now_us, quota, cost, MAX_LISTED);
        let explanation = Explanation::of(log, cost, now_us, read);
        let Some(penalty) = log.policy.get_penalty() else { return explanation };
        explanation.with_ban(self.ban_record(log).explain(now_us, penalty))
    }

    pub(super) fn restore(&mut self, check: &Check, age_us: u64, raise: bool) -> u32 {
        let entry = Entry { at_us: self.now_us - age_us, id: check.id };
        let (now_us, mut added) = (self.now_us, 0);
        for (log, cost) in check.costs() {
            let log = self.log(log);
            // Even an admission that is ignored removes expired entries. The difference shows when the
            // clock steps back.
            log.remove_expired(now_us, LONGEST_WINDOW_US);
            if age_us < LONGEST_WINDOW_US && cost > 0 {
                added += log.restore(entry, cost, 0, raise);
            }
        }
        added
    }

    pub(super) fn restore_ban(&mut self, log: &LogId, ban: &BanSnapshot) {
        let now_us = self.now_us;
        let penalty = log.policy.get_penalty();
        self.ban_record(log).impose(now_us, micros(ban.remaining), &ban.reason, penalty);
    }

    pub(super) fn settle(&mut self, check: &Check, cost: u32) -> bool {
        let (now_us, mut was_live) = (self.now_us, false);
        for log in &check.logs {
            let log = self.log(log);
            let is_live = log.find(check.id, now_us, LONGEST_WINDOW_US).is_some();
            was_live |= is_live;
            if is_live || cost == 0 {
                log.settle(check.id, cost);
            }
        }
        was_live
    }
}

/// Returns whether Redis decides with `admit.lua` and leaves expired entries in the log if it denies.
/// The difference shows when the clock steps back.
fn is_short(check: &Check, entries: &Log, now_us: u64) -> bool {
    let [log] = &check.logs[..] else { return false };
    let quotas = log.policy.quotas_and_candidates();
    quotas.len() == 1
        && log.policy.get_penalty().is_none()
        && check.takes_one_place()
        && !check.repeated
        && log.policy.quotas().iter().all(|quota| entries.len() <= quota.limit() as usize)
        && entries.newest_us().is_none_or(|newest_us| newest_us <= now_us)
}
