//! [`InProcess`]: groups in the memory of one process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;
use tower_sliding_window::{Key, StoreError};
use uuid::Uuid;

use crate::detector::Check;
use crate::event::Outcome;
use crate::rule::{StormRule, micros};

/// How long the state of a storm is kept after its last message has left the window.
const KEPT_AFTER_QUIET_US: u64 = 24 * 3600 * 1_000_000;
/// The shortest time between two sweeps of full groups, which go through all of them.
const BETWEEN_SWEEPS_US: u64 = 100_000;
/// A group gives no memory back while it has room for fewer messages than three times this.
const FEW_ENTRIES: usize = 16;
/// The table is not swept for its growth while it has fewer groups.
const FEW_GROUPS: usize = 1_024;

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
    /// The number of groups at which the table is swept.
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
        let mut group = groups.by_id.remove(&check.group).unwrap_or_default();
        groups.messages -= group.entries.len();
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
        if self.by_id.get(&check.group).is_some_and(|group| group.expires_us <= now_us) {
            self.remove(&check.group);
        }
        let Some(id) = &check.message else { return Ok(()) };
        let group = self.by_id.get(&check.group);
        let new_groups = usize::from(group.is_none());
        let drops_one = |it: &Group| it.ids.contains(id) || it.len() >= check.rule.cap_per_group();
        let new_messages = usize::from(!group.is_some_and(drops_one));
        let full = |it: &Self| {
            if it.by_id.len() + new_groups > it.most_groups {
                return Some(it.most_groups);
            }
            Some(it.most_messages).filter(|most| it.messages + new_messages > *most)
        };
        let is_overdue = now_us - self.swept_us >= BETWEEN_SWEEPS_US;
        if self.by_id.len() + new_groups > self.sweep_at || full(self).is_some() && is_overdue {
            self.sweep(check.rule.window_us(), now_us);
        }
        full(self).map_or(Ok(()), |capacity| Err(StoreError::Full { capacity }))
    }

    fn sweep(&mut self, window_us: u64, now_us: u64) {
        self.by_id.retain(|_, group| {
            group.expire(now_us, window_us);
            group.expires_us > now_us
        });
        self.messages = self.by_id.values().map(|group| group.entries.len()).sum();
        self.sweep_at = (2 * self.by_id.len()).max(FEW_GROUPS);
        self.by_id.shrink_to(self.sweep_at);
        self.swept_us = now_us;
    }

    fn remove(&mut self, group: &Key) {
        if let Some(group) = self.by_id.remove(group) {
            self.messages -= group.entries.len();
        }
    }
}

/// The messages and the storms of one group.
#[derive(Default)]
pub(crate) struct Group {
    /// Timestamps and ids, the oldest first; those with equal timestamps are sorted by id.
    entries: VecDeque<(u64, Key)>,
    ids: HashSet<Key>,
    /// The storm that started last.
    current: Option<Current>,
    /// The storm that ended last.
    last: Option<Last>,
    expires_us: u64,
}

#[derive(Default)]
struct Current {
    is_active: bool,
    since_us: u64,
    /// The count at its start.
    began: u32,
    call: Uuid,
    peak: u32,
    /// When the count falls below `ends_below` without further messages.
    below_us: u64,
    /// When the last message leaves the window.
    quiet_us: u64,
    reminded: Option<Reminded>,
}

/// The last reminder of a storm.
struct Reminded {
    /// When it was due.
    due_us: u64,
    count: u32,
    peak: u32,
    call: Uuid,
}

struct Last {
    since_us: u64,
    until_us: u64,
    peak: u32,
    call: Uuid,
}

impl Group {
    /// Does the same as `record.lua`, with a clock that never steps back.
    pub(crate) fn check(&mut self, check: &Check, now_us: u64) -> Outcome {
        let Check { call, rule, message, remind_us, .. } = check;
        let (window_us, threshold) = (rule.window_us(), rule.threshold().limit());

        // A storm may have ended since the last call because time has passed. This is detected before
        // the message is added.
        let below_us = self.below_us(rule);
        if let Some(storm) = self.current.as_mut().filter(|it| it.is_active) {
            let over_us = below_us.unwrap_or(storm.below_us.min(now_us));
            if over_us <= now_us {
                storm.is_active = false;
                let (since_us, peak, call) = (storm.since_us, storm.peak, *call);
                self.last = Some(Last { since_us, until_us: over_us.max(since_us), peak, call });
            }
        }
        self.expire(now_us, window_us);
        let is_added =
            message.as_ref().is_some_and(|id| self.add(now_us, id, rule.cap_per_group()));
        let count = self.len();

        let cool_us = self.cool_until_us(rule).saturating_sub(now_us);
        let is_active = self.current.as_ref().is_some_and(|it| it.is_active);
        let starts = !is_active && count > threshold && cool_us == 0;
        if starts {
            let (is_active, since_us, began, call) = (true, now_us, count, *call);
            let rest = Current::default();
            self.current = Some(Current { is_active, since_us, began, call, ..rest });
        }
        let (at, is_repeated) = (SystemTime::now(), message.is_some() && !is_added);
        let (mut recheck_us, mut storm) = (if count > threshold { cool_us } else { 0 }, None);
        let (below_us, quiet_us) = (self.below_us(rule), self.quiet_us(rule));
        if let Some(current) = self.current.as_mut().filter(|it| it.is_active) {
            if is_added || starts {
                current.below_us = below_us.unwrap_or(now_us);
                current.peak = current.peak.max(count);
                current.quiet_us = quiet_us;
            }
            let remind_after_us = current.remind(*call, *remind_us, count, now_us);
            recheck_us = below_us.map_or(1, |at_us| at_us - now_us).min(remind_after_us);
            storm = Some((now_us - current.since_us, current.peak));
        }
        let current = self.current.as_ref();
        let started = current.filter(|it| it.call == *call);
        let ended = self.last.as_ref().filter(|it| it.call == *call);
        let ongoing = current.and_then(|it| Some((it.since_us, it.reminded.as_ref()?)));
        let ongoing = ongoing.filter(|(_, it)| it.call == *call);
        Outcome {
            at,
            count,
            is_repeated,
            recheck_us,
            storm,
            started: started.map(|it| (now_us - it.since_us, it.began)),
            ended: ended.map(|it| (now_us - it.until_us, it.until_us - it.since_us, it.peak)),
            ongoing: ongoing.map(|(since_us, it)| {
                (now_us - it.due_us, it.due_us - since_us, it.count, it.peak)
            }),
        }
    }

    pub(crate) fn profile(&self, window_us: u64, step_us: u64, now_us: u64) -> Vec<u32> {
        let mut counts = vec![0; usize::try_from(window_us.div_ceil(step_us)).unwrap_or(0)];
        for (at_us, _) in &self.entries {
            let steps_ago = usize::try_from((now_us - at_us) / step_us).unwrap_or(usize::MAX);
            if now_us - at_us < window_us {
                let steps = counts.len();
                counts[steps - 1 - steps_ago] += 1;
            }
        }
        counts
    }

    fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
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
        while self.len() > cap {
            self.drop_oldest();
        }
        true
    }

    fn expire(&mut self, now_us: u64, window_us: u64) {
        while self.entries.front().is_some_and(|(at_us, _)| now_us - at_us >= window_us) {
            self.drop_oldest();
        }
        // What a storm has taken is given back after it.
        if self.entries.capacity() > 3 * self.entries.len().max(FEW_ENTRIES) {
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
        let place = self.entries.len().checked_sub(rule.end_threshold() as usize)?;
        self.entries.get(place).map(|(at_us, _)| at_us + rule.window_us())
    }

    /// Returns when the last message leaves the window.
    fn quiet_us(&self, rule: &StormRule) -> u64 {
        self.entries.back().map_or(0, |(at_us, _)| at_us + rule.window_us())
    }

    fn cool_until_us(&self, rule: &StormRule) -> u64 {
        self.last.as_ref().map_or(0, |it| it.until_us.saturating_add(rule.cool_down_us()))
    }

    fn needed_until_us(&self, rule: &StormRule) -> u64 {
        let storm = self.current.as_ref().filter(|it| it.is_active);
        let storm_us = storm.map_or(0, |it| it.quiet_us + KEPT_AFTER_QUIET_US);
        self.quiet_us(rule).max(storm_us).max(self.cool_until_us(rule))
    }
}

impl Current {
    /// Notes a reminder if it is due, and returns after how many microseconds the next is.
    fn remind(&mut self, call: Uuid, every_us: u64, count: u32, now_us: u64) -> u64 {
        if every_us == 0 {
            return u64::MAX;
        }
        let mut last_us = self.reminded.as_ref().map_or(self.since_us, |it| it.due_us);
        if now_us - last_us >= every_us {
            // Only the latest of those that are due.
            last_us = now_us - (now_us - self.since_us) % every_us;
            self.reminded = Some(Reminded { due_us: last_us, count, peak: self.peak, call });
        }
        last_us.saturating_add(every_us) - now_us
    }
}

#[cfg(test)]
impl Group {
    pub(crate) fn newest_us(&self) -> u64 {
        self.entries.back().map_or(0, |(at_us, _)| *at_us)
    }

    /// Returns the latest timestamp of the messages and storms.
    pub(crate) fn latest_us(&self) -> u64 {
        let since_us = self.current.as_ref().map_or(0, |it| it.since_us);
        let until_us = self.last.as_ref().map_or(0, |it| it.until_us);
        self.newest_us().max(since_us).max(until_us)
    }
}
