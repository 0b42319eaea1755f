//! [`InProcess`]: groups in the memory of one process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;
use tower_sliding_window::{Key, StoreError};

use crate::detector::Check;
use crate::event::Outcome;
use crate::rule::{StormRule, micros};

/// How long a storm is kept after its last message has left the window.
const KEPT_AFTER_QUIET_US: u64 = 24 * 3600 * 1_000_000;
/// The shortest time between two sweeps of full groups, which go through all of them.
const BETWEEN_SWEEPS_US: u64 = 100_000;
/// The table is not swept for its growth while it has fewer groups.
const FEW_GROUPS: usize = 1_024;
/// A group keeps the memory for three times as many messages.
const FEW_MESSAGES: usize = 16;

/// The messages and storms of groups in this process.
pub(crate) struct InProcess {
    start: Instant,
    groups: Mutex<Groups>,
}

/// The table of groups. Those that have expired stay until they are asked for, or until a sweep.
struct Groups {
    by_id: HashMap<Key, Group>,
    /// How many messages the groups hold, also those that have left the window.
    messages: usize,
    most_groups: usize,
    most_messages: usize,
    /// The number of groups above which the table is swept.
    sweep_at: usize,
    swept_us: u64,
}

impl InProcess {
    pub(crate) fn new(most_groups: usize, most_messages: usize) -> Self {
        let (by_id, messages, sweep_at, swept_us) = (HashMap::new(), 0, FEW_GROUPS, 0);
        let groups = Groups { by_id, messages, most_groups, most_messages, sweep_at, swept_us };
        Self { start: Instant::now(), groups: Mutex::new(groups) }
    }

    pub(crate) fn set_capacity(&self, groups: usize, messages: usize) {
        let mut held = self.lock();
        (held.most_groups, held.most_messages) = (groups, messages);
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        // No code under the lock panics halfway through a change, so a poisoned value is consistent.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the check says in one atomic step.
    pub(crate) fn check(&self, check: &Check) -> Result<Outcome, StoreError> {
        let mut groups = self.lock();
        // Under the lock, so that the timestamps of a group never step back.
        let now_us = micros(self.start.elapsed());
        groups.make_room(check, now_us)?;
        let group = groups.by_id.remove(&check.group).unwrap_or_default();
        groups.messages -= group.entries.len();
        let mut group = if group.expires_us > now_us { group } else { Group::default() };
        let outcome = group.check(check, now_us);
        group.expires_us = group.needed_until_us(&check.rule);
        if group.expires_us > now_us {
            groups.messages += group.entries.len();
            groups.by_id.insert(check.group.clone(), group);
        }
        Ok(outcome)
    }

    /// Counts the messages of a group in each step of the window, the oldest first.
    pub(crate) fn profile(&self, rule: &StormRule, group: &Key, step_us: u64) -> Vec<u32> {
        let (groups, nothing) = (self.lock(), Group::default());
        let group = groups.by_id.get(group).unwrap_or(&nothing);
        group.profile(rule.window_us(), step_us, micros(self.start.elapsed()))
    }
}

impl Groups {
    /// Makes sure that the message of a check fits, if there is one. Drops only what has expired.
    fn make_room(&mut self, check: &Check, now_us: u64) -> Result<(), StoreError> {
        let Some(id) = &check.message else { return Ok(()) };
        let group = self.by_id.get(&check.group);
        // A message that is known, or that displaces another one of its group, needs no room.
        let fits = |it: &Group| it.ids.contains(id) || it.entries.len() >= check.rule.cap as usize;
        let (new_group, new_message) =
            (group.is_none() as usize, !group.is_some_and(fits) as usize);
        let lacks_group = |it: &Self| it.by_id.len() + new_group > it.most_groups;
        let is_full = |it: &Self| lacks_group(it) || it.messages + new_message > it.most_messages;
        let is_overdue = now_us - self.swept_us >= BETWEEN_SWEEPS_US;
        if is_overdue && is_full(self) || self.by_id.len() + new_group > self.sweep_at {
            self.sweep(check.rule.window_us(), now_us);
        }
        match is_full(self) {
            true if lacks_group(self) => Err(StoreError::Full { capacity: self.most_groups }),
            true => Err(StoreError::Full { capacity: self.most_messages }),
            false => Ok(()),
        }
    }

    fn sweep(&mut self, window_us: u64, now_us: u64) {
        self.by_id.retain(|_, group| {
            // A storm ends by a check only, which asks when its messages have left the window.
            if group.storm.is_none() {
                group.expire(now_us, window_us);
            }
            group.expires_us > now_us
        });
        self.messages = self.by_id.values().map(|group| group.entries.len()).sum();
        self.sweep_at = (2 * self.by_id.len()).max(FEW_GROUPS);
        self.by_id.shrink_to(self.sweep_at);
        self.swept_us = now_us;
    }
}

/// The messages and the storm of one group.
#[derive(Default)]
pub(crate) struct Group {
    /// Timestamps and ids, the oldest first; those with equal timestamps are sorted by id.
    pub(crate) entries: VecDeque<(u64, Key)>,
    ids: HashSet<Key>,
    storm: Option<Storm>,
    /// When the last storm ended.
    ended_us: Option<u64>,
    expires_us: u64,
}

#[derive(Default)]
struct Storm {
    since_us: u64,
    peak: u32,
    /// When the count falls below `ends_below` without further messages.
    below_us: u64,
    /// When the last reminder was due, or else the start.
    reminded_us: u64,
}

impl Group {
    /// Decides as `record.lua` does, with a clock that never steps back. No reply is lost here, so no call
    /// is repeated.
    pub(crate) fn check(&mut self, check: &Check, now_us: u64) -> Outcome {
        let Check { rule, message, remind_us, .. } = check;
        let threshold = rule.threshold().limit();
        // A storm may have ended since the last call because time has passed. This is detected before
        // the message is added.
        let mut ended = None;
        if let Some(storm) = &self.storm {
            let over_us = self.below_us(rule).unwrap_or(storm.below_us.min(now_us));
            if over_us <= now_us {
                let over_us = over_us.max(storm.since_us);
                ended = Some((now_us - over_us, over_us - storm.since_us, storm.peak));
                (self.storm, self.ended_us) = (None, Some(over_us));
            }
        }
        self.expire(now_us, rule.window_us());
        let is_added = message.as_ref().is_some_and(|id| self.add(now_us, id, rule.cap));
        let count = self.entries.len() as u32;

        let cool_us = self.cool_until_us(rule).saturating_sub(now_us);
        let starts = self.storm.is_none() && count > threshold && cool_us == 0;
        if starts {
            let (since_us, reminded_us) = (now_us, now_us);
            self.storm = Some(Storm { since_us, reminded_us, ..Storm::default() });
        }
        let below_us = self.below_us(rule);
        let (mut recheck_us, mut ongoing) = (if count > threshold { cool_us } else { 0 }, None);
        if let Some(storm) = &mut self.storm {
            if is_added || starts {
                storm.below_us = below_us.unwrap_or(now_us);
                storm.peak = storm.peak.max(count);
            }
            recheck_us = below_us.map_or(1, |at_us| at_us - now_us);
            if *remind_us > 0 {
                let lasted_us = (now_us - storm.since_us) / remind_us * remind_us;
                if now_us - storm.reminded_us >= *remind_us {
                    // Only the latest of those that are due.
                    storm.reminded_us = storm.since_us + lasted_us;
                    ongoing = Some((now_us - storm.reminded_us, lasted_us, count, storm.peak));
                }
                recheck_us = recheck_us.min(storm.reminded_us.saturating_add(*remind_us) - now_us);
            }
        }
        let storm = self.storm.as_ref().map(|it| (now_us - it.since_us, it.peak));
        let (is_repeated, started) = (message.is_some() && !is_added, starts.then_some((0, count)));
        let at = SystemTime::now();
        Outcome { at, count, is_repeated, recheck_us, storm, started, ended, ongoing }
    }

    pub(crate) fn profile(&self, window_us: u64, step_us: u64, now_us: u64) -> Vec<u32> {
        let mut counts = vec![0; window_us.div_ceil(step_us) as usize];
        let ages = self.entries.iter().map(|(at_us, _)| now_us - at_us);
        for age_us in ages.filter(|age_us| *age_us < window_us) {
            let last = counts.len() - 1;
            counts[last - (age_us / step_us) as usize] += 1;
        }
        counts
    }

    /// Adds a message unless it is present, and drops the oldest above the cap. Returns whether it was
    /// added.
    fn add(&mut self, now_us: u64, id: &Key, cap: u32) -> bool {
        if !self.ids.insert(id.clone()) {
            return false;
        }
        let entry = (now_us, id.clone());
        let later = self.entries.iter().rev().take_while(|it| **it > entry).count();
        self.entries.insert(self.entries.len() - later, entry);
        while self.entries.len() > cap as usize {
            self.drop_oldest();
        }
        true
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

    /// Returns when the last message leaves the window.
    fn quiet_us(&self, rule: &StormRule) -> u64 {
        self.entries.back().map_or(0, |(at_us, _)| at_us + rule.window_us())
    }

    fn cool_until_us(&self, rule: &StormRule) -> u64 {
        self.ended_us.map_or(0, |ended_us| ended_us.saturating_add(micros(rule.cool_down)))
    }

    fn needed_until_us(&self, rule: &StormRule) -> u64 {
        let kept_us = if self.storm.is_some() { KEPT_AFTER_QUIET_US } else { 0 };
        (self.quiet_us(rule) + kept_us).max(self.cool_until_us(rule))
    }
}
