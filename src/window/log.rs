//! [`Log`]: the admissions of a key, and the state of a quota that follows from them.

use std::collections::VecDeque;

use uuid::Uuid;

use super::costs::{Cost, Costs, Entry, make_room, remove_first};
use super::explanation::{Explanation, QuotaExplanation};
use super::log_id::LogId;
use super::outcome::{LogOutcome, QuotaState};
use crate::quota::Quota;

/// The admissions of one key under one policy, oldest first.
///
/// Expired entries stay at the front until the next admission.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// What each entry of a budget takes. Elsewhere an entry is one place.
    costs: Option<Box<Costs>>,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new(), costs: None }
    }

    /// Returns what the log says of a request of cost `cost`, without its ban.
    pub(crate) fn outcome(&self, log: &LogId, id: Uuid, now_us: u64, cost: u32) -> LogOutcome {
        let held_us = self.held_us(log, id, now_us);
        LogOutcome::new(log.policy.quotas().iter().map(|quota| {
            let state = self.state(now_us, *quota, cost_beside(held_us, now_us, *quota, cost));
            // Its own entry may leave while it waits, and then it needs a place.
            let end_us = now_us + state.wait_us;
            match held_us {
                Some(at_us) if state.is_full() && at_us + quota.window_us() <= end_us => {
                    self.state(now_us, *quota, cost)
                }
                _ => state,
            }
        }))
    }

    /// Returns the timestamp of the request's entry if it takes no place again.
    fn held_us(&self, log: &LogId, id: Uuid, now_us: u64) -> Option<u64> {
        let policy = &log.policy;
        let find = || self.find(log.entry_id(id), now_us, policy.retention_us());
        if policy.refreshes() { find() } else { None }
    }

    /// Returns the state of `quota` at `now_us` for a request of cost `cost`.
    ///
    /// The request fits if `cost` places are free. One entry decides this alone: if it has left the window, so
    /// have all older ones, and the rest leaves room. A cost above the limit never fits, and its wait is one
    /// whole window.
    pub(crate) fn state(&self, now_us: u64, quota: Quota, cost: u32) -> QuotaState {
        let window_us = quota.window_us();
        let expired = self.expired(now_us, window_us);
        let used = self.used_from(expired);
        let time_left = |entry: &Entry| entry.at_us + window_us - now_us;
        QuotaState {
            remaining: quota.limit().saturating_sub(u32::try_from(used).unwrap_or(u32::MAX)),
            wait_us: match self.must_leave(quota, cost) {
                None => window_us,
                Some(Some(index)) if index >= expired => time_left(&self.entries[index]),
                Some(_) => 0,
            },
            reset_us: self.entries.get(expired).map_or(0, time_left),
        }
    }

    /// Returns how many entries have left a window. They are the oldest ones.
    fn expired(&self, now_us: u64, window_us: u64) -> usize {
        self.entries.partition_point(|entry| entry.at_us + window_us <= now_us)
    }

    /// Returns how many places the entries from an index on take.
    fn used_from(&self, index: usize) -> u64 {
        self.costs.as_ref().map_or((self.entries.len() - index) as u64, |costs| costs.from(index))
    }

    fn cost_at(&self, index: usize) -> Cost {
        self.costs.as_ref().map_or(Cost::of(1), |costs| costs.get(index))
    }

    /// Returns the index of the newest entry that has to leave before a request fits, if there is one, or
    /// `None` if the request never fits.
    fn must_leave(&self, quota: Quota, cost: u32) -> Option<Option<usize>> {
        let may_stay = quota.limit().checked_sub(cost)?;
        let excess = self.used_from(0).saturating_sub(u64::from(may_stay));
        Some((excess > 0).then(|| match &self.costs {
            None => excess as usize - 1,
            Some(costs) => costs.reach(excess),
        }))
    }

    /// Explains what the log decides about a new request of cost `cost`, without its ban.
    pub(crate) fn explain(&self, log: &LogId, now_us: u64, cost: u32) -> Explanation {
        let outcome = self.outcome(log, Uuid::nil(), now_us, cost);
        let explain = |(quota, state): (&Quota, &QuotaState)| {
            let live = self.live(now_us, quota.window_us());
            let live = live.map(|(entry, cost)| (entry, cost.now));
            QuotaExplanation::new(now_us, *quota, *state, live)
        };
        let quotas = log.policy.quotas().iter().zip(outcome.quotas()).map(explain).collect();
        Explanation::of(log, cost, now_us, quotas)
    }

    /// Records a request. The entry of a value, or of a request in flight, that is there gets the timestamp if that is later.
    pub(crate) fn record(&mut self, log: &LogId, request: Uuid, at_us: u64, cost: u32) {
        let entry = Entry { at_us, id: log.entry_id(request) };
        if log.policy.refreshes()
            && let Some(index) = self.newest_of(entry.id)
        {
            if self.entries[index].at_us >= at_us {
                return;
            }
            self.remove_at(index);
        }
        self.add(entry, log.kept_cost(cost));
    }

    /// Adds an entry. It takes one place, or its cost under a budget.
    ///
    /// The entries stay ordered by timestamp, also after the clock has stepped back.
    pub(crate) fn add(&mut self, entry: Entry, cost: Option<Cost>) {
        // Nearly always none: only after the clock has stepped back, or after a reply that overtook
        // others.
        let newer = self.entries.iter().rev().take_while(|other| other.at_us > entry.at_us).count();
        let index = self.entries.len() - newer;
        make_room(&mut self.entries);
        self.entries.insert(index, entry);
        if let Some(cost) = cost {
            self.costs.get_or_insert_default().insert(index, cost);
        }
    }

    /// Returns the index of a request's newest entry. The log may still hold an older entry of the
    /// same identity that has left the window.
    fn newest_of(&self, id: Uuid) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.id == id)
    }

    /// Returns the entries that have not left a window, oldest first, each with what it takes.
    pub(crate) fn live(
        &self,
        now_us: u64,
        window_us: u64,
    ) -> impl DoubleEndedIterator<Item = (Entry, Cost)> {
        let first = self.expired(now_us, window_us);
        (first..self.entries.len()).map(|index| (self.entries[index], self.cost_at(index)))
    }

    fn remove_at(&mut self, index: usize) {
        self.entries.remove(index);
        if let Some(costs) = &mut self.costs {
            costs.remove(index);
        }
    }

    fn remove_first(&mut self, count: usize) {
        remove_first(&mut self.entries, count);
        if let Some(costs) = &mut self.costs {
            costs.remove_first(count);
        }
    }

    /// Sets what a request takes, if the log has it: nothing removes it. It keeps its timestamp.
    ///
    /// The search begins at the newest entry, because a request is usually settled or cancelled soon after its
    /// admission.
    pub(crate) fn settle(&mut self, id: Uuid, cost: u32) {
        let Some(index) = self.newest_of(id) else { return };
        match &mut self.costs {
            _ if cost == 0 => self.remove_at(index),
            Some(costs) => costs.set(index, cost),
            None => {}
        }
    }

    /// Returns what a request takes, if the log has it.
    pub(crate) fn cost_of(&self, id: Uuid) -> Option<u32> {
        self.newest_of(id).map(|index| self.cost_at(index).now)
    }

    /// Removes the entries up to and including an instant.
    pub(crate) fn remove_until(&mut self, at_us: u64) {
        self.remove_first(self.entries.partition_point(|entry| entry.at_us <= at_us));
    }

    /// Returns the timestamp of a request that has not left the longest window.
    pub(crate) fn find(&self, id: Uuid, now_us: u64, longest_window_us: u64) -> Option<u64> {
        let mut live = self.live(now_us, longest_window_us).rev();
        live.find(|(entry, _)| entry.id == id).map(|(entry, _)| entry.at_us)
    }

    /// Removes the entries that have left the longest window.
    pub(crate) fn remove_expired(&mut self, now_us: u64, longest_window_us: u64) {
        self.remove_first(self.expired(now_us, longest_window_us));
    }

    pub(crate) fn newest_us(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.at_us)
    }
}

/// Returns how many places a request takes in the window of `quota`: none if its entry is there.
fn cost_beside(held_us: Option<u64>, now_us: u64, quota: Quota, cost: u32) -> u32 {
    if held_us.is_some_and(|at_us| at_us + quota.window_us() > now_us) { 0 } else { cost }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::Policy;

    fn quota(limit: u32, window_us: u64) -> Quota {
        Quota::new(limit, Duration::from_micros(window_us))
    }

    fn log(timestamps: &[u64]) -> Log {
        let mut log = Log::new();
        for (id, at_us) in timestamps.iter().enumerate() {
            log.add(Entry { at_us: *at_us, id: Uuid::from_u128(id as u128) }, None);
        }
        log
    }

    #[test]
    fn renewed_entries_are_ordered_and_unique() {
        let policy = Policy::new("jobs").quota(quota(9, 1_000)).in_flight();
        let (of, mut log) = (LogId::new(policy.into(), "alice"), log(&[100, 300]));
        for (at_us, id) in [(200, 9), (150, 9), (250, 0)] {
            log.record(&of, Uuid::from_u128(id), at_us, 1);
        }
        let timestamps: Vec<u64> = log.live(300, 1_000).map(|(entry, _)| entry.at_us).collect();
        assert_eq!(timestamps, [200, 250, 300], "timestamps are raised, never lowered");
    }
}
