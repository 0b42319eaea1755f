//! [`InProcess`]: groups in the memory of one process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;
use tower_sliding_window::{Key, StoreError};

use crate::check::{Check, Outcome};
use crate::rule::StormRule;

/// How long a storm is kept after its last message has left the window.
const KEPT_AFTER_QUIET_US: u64 = 24 * 3600 * 1_000_000;
/// The shortest time between two sweeps, which go through all groups.
const BETWEEN_SWEEPS_US: u64 = 100_000;
/// A group keeps the memory for three times as many messages.
const FEW_MESSAGES: usize = 2;
/// As how many messages a group counts.
const GROUP: usize = 2;

/// The messages and storms of groups in this process.
pub(crate) struct InProcess {
    rule: Arc<StormRule>,
    start: Instant,
    groups: Mutex<Groups>,
}

/// The table of groups. Those that have expired stay until they are asked for, or until a sweep.
struct Groups {
    by_id: HashMap<Key, Group>,
    /// How many messages the groups hold, also those that have left the window.
    messages: usize,
    capacity: usize,
    swept_us: u64,
}

impl InProcess {
    pub(crate) fn new(rule: Arc<StormRule>) -> Self {
        let (by_id, capacity) = (HashMap::new(), 1_000_000);
        let groups = Groups { by_id, messages: 0, capacity, swept_us: 0 };
        Self { rule, start: Instant::now(), groups: Mutex::new(groups) }
    }

    pub(crate) fn set_capacity(&self, messages: usize) {
        self.lock().capacity = messages;
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        // No code under the lock panics halfway through a change, so a poisoned value is consistent.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the check says in one atomic step.
    pub(crate) fn check(&self, check: &Check) -> Result<Outcome, StoreError> {
        let (mut groups, rule) = (self.lock(), &*self.rule);
        // Under the lock, so that the timestamps of a group never step back.
        let now_us = self.start.elapsed().as_micros() as u64;
        groups.make_room(check, rule, now_us)?;
        let group = groups.by_id.remove(&check.group).unwrap_or_default();
        groups.messages -= group.entries.len();
        let mut group = if group.is_needed(rule, now_us) { group } else { Group::default() };
        let outcome = group.check(check, rule, now_us);
        if group.is_needed(rule, now_us) {
            groups.messages += group.entries.len();
            groups.by_id.insert(check.group.clone(), group);
        }
        Ok(outcome)
    }
}

impl Groups {
    /// Makes sure that the message of a check fits, if there is one. Drops only what has expired.
    fn make_room(
        &mut self,
        check: &Check,
        rule: &StormRule,
        now_us: u64,
    ) -> Result<(), StoreError> {
        let Some(id) = &check.message else { return Ok(()) };
        // A message that is known, or that displaces another one of its group, needs no room.
        let fits = |it: &Group| it.ids.contains(id) || it.entries.len() >= rule.cap as usize;
        let more = self.by_id.get(&check.group).map_or(GROUP + 1, |it| usize::from(!fits(it)));
        let is_full = |it: &Self| it.messages + GROUP * it.by_id.len() + more > it.capacity;
        // Once in a window, or more often while it is full.
        let pause_us = if is_full(self) { 0 } else { rule.window_us() };
        if now_us - self.swept_us >= pause_us.max(BETWEEN_SWEEPS_US) {
            self.sweep(rule, now_us);
        }
        if is_full(self) { Err(StoreError::Full { capacity: self.capacity }) } else { Ok(()) }
    }

    fn sweep(&mut self, rule: &StormRule, now_us: u64) {
        self.by_id.retain(|_, group| {
            // A storm ends by a check only, which asks when its messages have left the window.
            if group.storm.is_none() {
                group.expire(now_us, rule.window_us());
            }
            group.is_needed(rule, now_us)
        });
        self.messages = self.by_id.values().map(|group| group.entries.len()).sum();
        self.by_id.shrink_to(2 * self.by_id.len());
        self.swept_us = now_us;
    }
}

/// The messages and the storm of one group.
#[derive(Default)]
struct Group {
    /// Timestamps and ids, the oldest first.
    entries: VecDeque<(u64, Key)>,
    ids: HashSet<Key>,
    /// When the storm started, and its peak.
    storm: Option<(u64, u32)>,
}

impl Group {
    /// Decides as `record.lua` does, with a clock that never steps back and a rule that never changes. No
    /// reply is lost here, so no call is repeated.
    fn check(&mut self, check: &Check, rule: &StormRule, now_us: u64) -> Outcome {
        // A storm may have ended since the last call because time has passed. This is detected before
        // the message is added.
        let mut ended = None;
        if let Some((since_us, peak)) = self.storm
            && let Some(over_us) = self.below_us(rule).filter(|at_us| *at_us <= now_us)
        {
            let over_us = over_us.max(since_us);
            ended = Some((now_us - over_us, over_us - since_us, peak));
            self.storm = None;
        }
        self.expire(now_us, rule.window_us());
        if let Some(id) = &check.message {
            self.add(now_us, id, rule.cap);
        }
        let count = self.entries.len() as u32;

        let starts = self.storm.is_none() && count > rule.threshold.limit();
        if starts {
            self.storm = Some((now_us, count));
        }
        let below_us = self.below_us(rule);
        let recheck_us = self.storm.as_mut().map_or(0, |(_, peak)| {
            *peak = count.max(*peak);
            below_us.map_or(1, |at_us| at_us - now_us)
        });
        let storm = self.storm.map(|(since_us, peak)| (now_us - since_us, peak));
        let started = starts.then_some((0, count));
        Outcome { at: SystemTime::now(), count, recheck_us, storm, started, ended }
    }

    /// Adds a message unless it is present, and drops the oldest above the cap.
    fn add(&mut self, now_us: u64, id: &Key, cap: u32) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.entries.push_back((now_us, id.clone()));
        if self.entries.len() > cap as usize {
            self.drop_oldest();
        }
    }

    fn expire(&mut self, now_us: u64, window_us: u64) {
        while self.entries.front().is_some_and(|(at_us, _)| now_us - at_us >= window_us) {
            self.drop_oldest();
        }
        // What a storm has taken is given back after it.
        if self.entries.capacity() > 3 * self.entries.len().max(FEW_MESSAGES) {
            self.entries.shrink_to(2 * self.entries.len());
            self.ids.shrink_to(2 * self.entries.len());
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.entries.pop_front() {
            self.ids.remove(&id);
        }
    }

    /// Returns when fewer than `ends_below` messages are in the window, if there are as many now.
    fn below_us(&self, rule: &StormRule) -> Option<u64> {
        let place = self.entries.len().checked_sub(rule.ends_below as usize)?;
        self.entries.get(place).map(|(at_us, _)| at_us + rule.window_us())
    }

    /// A storm keeps its messages until a check ends it, so that the newest of them says for how long it is kept.
    fn is_needed(&self, rule: &StormRule, now_us: u64) -> bool {
        let quiet_us = self.entries.back().map_or(0, |(at_us, _)| at_us + rule.window_us());
        let kept_us = if self.storm.is_some() { KEPT_AFTER_QUIET_US } else { 0 };
        quiet_us + kept_us > now_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_storm_is_given_back() {
        let mut group = Group::default();
        (0..1_000_u32).for_each(|id| group.add(u64::from(id), &Key::from(id), 1_000));
        group.expire(1_989, 1_000);
        assert_eq!(group.entries.len(), 10);
        assert!(group.entries.capacity() < 50 && group.ids.capacity() < 50);
    }

    /// A million of what is counted take 500 MB, as `StormDetector::capacity` says, also in groups that had more messages.
    #[test]
    fn a_group_takes_no_more_than_it_counts_for() {
        for before in 1..100_u32 {
            for left in 1..=before {
                let mut group = Group::default();
                let start = |id: u32| if id < before - left { 0 } else { 500 };
                (0..before).for_each(|id| group.add(start(id), &Key::from(id), 1_000));
                group.expire(1_000, 1_000);
                assert_eq!(group.entries.len(), left as usize);
                let entries = group.entries.capacity() * size_of::<(u64, Key)>();
                // Of a table a seventh more, and a byte for each.
                let ids = group.ids.capacity() * 8 / 7 * (size_of::<Key>() + 1);
                let bytes = size_of::<(Key, Group)>() * 2 + entries + ids;
                let counts = GROUP + left as usize;
                assert!(bytes <= 500 * counts, "{left} of {before} messages: {bytes}");
            }
        }
    }
}
