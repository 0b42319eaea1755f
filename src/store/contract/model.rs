//! [`Model`]: the pure algorithm as a store with its own clock.

use std::collections::HashMap;
use std::time::Duration;

use crate::key::Key;
use crate::window::{BanRecord, BanState, Check, Explanation, Log, LogId, Outcome, QuotaState};

#[derive(Default)]
pub(super) struct Model {
    pub(super) now_us: u64,
    logs: HashMap<LogId, Log>,
    ban_records: HashMap<(String, Key), BanRecord>,
}

impl Model {
    pub(super) fn at(now_us: u64) -> Self {
        Self { now_us, ..Self::default() }
    }

    pub(super) fn log(&mut self, log: &LogId) -> &mut Log {
        self.logs.entry(log.clone()).or_insert_with(Log::new)
    }

    pub(super) fn ban_record(&mut self, log: &LogId) -> &mut BanRecord {
        let name = (log.policy.name().to_owned(), log.key.clone());
        self.ban_records.entry(name).or_default()
    }

    /// Decides on a check that is sent again, because its reply was lost, as the first time if that was recorded.
    pub(super) fn decide_again(&mut self, check: &Check) -> Outcome {
        let now_us = self.now_us;
        let recorded_us = check
            .logs
            .iter()
            .filter(|log| !log.policy.refreshes())
            .find_map(|log| self.log(log).find(check.id, now_us, log.policy.retention_us()));
        let Some(recorded_us) = recorded_us else { return self.decide(check, true) };
        let mut outcome = self.decide(&check.at_cost(0), false);
        outcome.admitted = true;
        outcome.timestamp = Some(Duration::from_micros(recorded_us));
        for log in outcome.logs_mut() {
            log.set_ban(BanState::default());
            log.quotas_mut().iter_mut().for_each(|state| state.wait_us = 0);
        }
        outcome
    }

    pub(super) fn decide(&mut self, check: &Check, record: bool) -> Outcome {
        let (now_us, id) = (self.now_us, check.id);
        let mut outcomes = Vec::new();
        for (log, cost) in check.costs() {
            let (entries, kept_us) = (self.log(log), log.policy.retention_us());
            entries.remove_expired(now_us, kept_us);
            outcomes.push(entries.outcome(log, id, now_us, cost));
        }
        let mut outcome =
            Outcome::new(true, outcomes).with_timestamp(Duration::from_micros(now_us));
        for (log, outcome) in check.logs.iter().zip(outcome.logs_mut()) {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let full_us = outcome.longest_full_window_us(&log.policy);
            let ban_record = self.ban_record(log);
            outcome.set_ban(BanState::of(ban_record, now_us, id, (full_us, penalty), record));
        }
        outcome.admitted = outcome.fits();
        if outcome.admitted && record {
            for ((log, cost), outcome) in check.costs().zip(outcome.logs_mut()) {
                let entries = self.log(log);
                // If the clock has stepped back, the entry must not leave before the newest one.
                let newest_us = entries.newest_us().filter(|it| it / 1_000 > now_us / 1_000 + 1);
                let at_us = newest_us.map_or(now_us, |it| it + 1);
                if cost > 0 {
                    entries.record(log, id, at_us, cost);
                }
                for (quota, state) in log.policy.quotas().iter().zip(outcome.quotas_mut()) {
                    let wait_us = state.wait_us;
                    *state = QuotaState { wait_us, ..entries.state(now_us, *quota, 1) };
                }
            }
        }
        outcome
    }

    pub(super) fn explain(&mut self, log: &LogId, cost: u32) -> Explanation {
        let now_us = self.now_us;
        let explanation = self.log(log).explain(log, now_us, cost);
        let Some(penalty) = log.policy.get_penalty() else { return explanation };
        explanation.with_ban(self.ban_record(log).explain(now_us, penalty))
    }

    pub(super) fn settle(&mut self, check: &Check, cost: u32) -> bool {
        let (now_us, mut was_live) = (self.now_us, false);
        for log in &check.logs {
            let Some(cost) = log.settled_cost(cost) else { continue };
            let (log, kept_us) = (self.log(log), log.policy.retention_us());
            let is_live = log.find(check.id, now_us, kept_us).is_some();
            was_live |= is_live;
            if is_live || cost == 0 {
                log.settle(check.id, cost);
            }
        }
        was_live
    }
}
