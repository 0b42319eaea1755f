//! Storms in process: implements [`StormStore`] for [`MemoryStore`].

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ahash::RandomState;
use uuid::Uuid;

use super::rule::StormRule;
use super::store::{Ended, Started, StormCheck, StormOutcome, StormStore};
use crate::key::Key;
use crate::store::{ExpiringValue, Keep, MemoryStore, StoreFuture, heap_bytes_of};
use crate::time::micros;

/// How long the state of a storm is kept after its last message has left the window.
const KEPT_AFTER_QUIET_US: u64 = 24 * 3600 * 1_000_000;

/// The messages and the storms of one group.
#[derive(Default)]
pub(crate) struct Group {
    log: Log,
    /// The storm that started last.
    current: Option<Current>,
    /// The storm that ended last.
    last: Option<Last>,
}

/// Messages with their timestamps, oldest first; messages with equal timestamps are sorted by id.
#[derive(Default)]
struct Log {
    entries: VecDeque<(u64, Key)>,
    ids: HashSet<Key, RandomState>,
    /// How many bytes the ids take on the heap, in both collections.
    heap_bytes: usize,
}

struct Current {
    active: bool,
    since_us: u64,
    began: u32,
    call: Uuid,
    peak: u32,
    /// When the count falls below `ends_below` without further messages.
    below_us: u64,
    /// When the last message leaves the window.
    quiet_us: u64,
}

struct Last {
    since_us: u64,
    until_us: u64,
    peak: u32,
    call: Uuid,
}

impl Log {
    fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Adds a message unless it is present, and drops the oldest above the cap. Returns whether it was
    /// added.
    fn add(&mut self, now_us: u64, id: &Key, cap: u32) -> bool {
        if !self.ids.insert(id.clone()) {
            return false;
        }
        self.heap_bytes += 2 * heap_bytes_of(id);
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
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.entries.pop_front() {
            self.ids.remove(&id);
            self.heap_bytes -= 2 * heap_bytes_of(&id);
        }
    }

    /// Returns how many bytes the log takes on the heap.
    fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<(u64, Key)>();
        entries + set_bytes(self.ids.capacity()) + self.heap_bytes
    }

    /// Returns by how many bytes the log may grow if a message is added.
    fn growth(&self, now_us: u64, id: &Key, window_us: u64) -> usize {
        if self.ids.contains(id) {
            return 0;
        }
        let expired = self.entries.partition_point(|(at_us, _)| now_us - at_us >= window_us);
        let live = self.entries.len() - expired;
        let mut bytes = 2 * heap_bytes_of(id);
        // A full collection doubles its capacity.
        if live == self.entries.capacity() {
            bytes += live.max(4) * size_of::<(u64, Key)>();
        }
        let capacity = self.ids.capacity();
        if live == capacity {
            bytes += set_bytes(2 * capacity.max(2)) - set_bytes(capacity);
        }
        bytes
    }

    fn newest_us(&self) -> Option<u64> {
        self.entries.back().map(|(at_us, _)| *at_us)
    }

    /// Returns when fewer than `count` messages are in the window, if there are as many now.
    fn below_at(&self, count: u32, window_us: u64) -> Option<u64> {
        let place = self.entries.len().checked_sub(count as usize)?;
        self.entries.get(place).map(|(at_us, _)| at_us + window_us)
    }
}

/// Returns how many bytes a set with this capacity takes.
fn set_bytes(capacity: usize) -> usize {
    // One in eight buckets stays free, and each bucket has a control byte.
    (capacity * 8).div_ceil(7) * (size_of::<Key>() + 1)
}

impl Group {
    /// Does the same as `record.lua`, with a clock that never steps back.
    pub(super) fn check(&mut self, check: &StormCheck, now_us: u64) -> StormOutcome {
        let StormCheck { call, rule, message, .. } = check;
        let (window_us, ends_below) = (rule.window_us(), rule.end_threshold());

        // A storm may have ended since the last call because time has passed. This is detected before
        // the message is added.
        if let Some(current) = self.current.as_mut().filter(|it| it.active) {
            let below_at = self.log.below_at(ends_below, window_us);
            let over_us = below_at.unwrap_or(current.below_us.min(now_us));
            if over_us <= now_us {
                current.active = false;
                let (since_us, peak) = (current.since_us, current.peak);
                let until_us = over_us.max(since_us);
                self.last = Some(Last { since_us, until_us, peak, call: *call });
            }
        }
        self.log.expire(now_us, window_us);
        let cap = rule.cap_per_group();
        let added = message.as_ref().is_some_and(|id| self.log.add(now_us, id, cap));
        let count = self.log.len();

        let cool_us = self.cool_until_us(rule).saturating_sub(now_us);
        let starts = !self.is_active() && count > rule.threshold().limit() && cool_us == 0;
        if starts {
            let (since_us, began, call) = (now_us, count, *call);
            let (active, peak, below_us, quiet_us) = (true, 0, 0, 0);
            self.current =
                Some(Current { active, since_us, began, call, peak, below_us, quiet_us });
        }
        let mut outcome = StormOutcome::new(SystemTime::now(), count, message.is_some() && !added);
        if let Some(current) = self.current.as_mut().filter(|it| it.active) {
            let below_at = self.log.below_at(ends_below, window_us);
            if added || starts {
                current.below_us = below_at.unwrap_or(now_us);
                current.peak = current.peak.max(count);
                current.quiet_us = self.log.newest_us().unwrap_or(now_us) + window_us;
            }
            outcome.recheck_after =
                Some(Duration::from_micros(below_at.map_or(1, |at_us| at_us - now_us)));
            outcome.storm = Some((Duration::from_micros(now_us - current.since_us), current.peak));
        } else if count > rule.threshold().limit() {
            outcome.recheck_after = (cool_us > 0).then(|| Duration::from_micros(cool_us));
        }
        let started = self.current.as_ref().filter(|it| it.call == *call);
        outcome.started = started.map(|it| Started {
            ago: Duration::from_micros(now_us - it.since_us),
            count: it.began,
        });
        let ended = self.last.as_ref().filter(|it| it.call == *call);
        outcome.ended = ended.map(|it| Ended {
            ago: Duration::from_micros(now_us - it.until_us),
            lasted: Duration::from_micros(it.until_us - it.since_us),
            peak: it.peak,
        });
        outcome
    }

    fn is_active(&self) -> bool {
        self.current.as_ref().is_some_and(|it| it.active)
    }

    fn cool_until_us(&self, rule: &StormRule) -> u64 {
        self.last
            .as_ref()
            .map_or(0, |it| it.until_us.saturating_add(micros(rule.cool_down_length())))
    }

    fn keep(&self, rule: &StormRule, now_us: u64) -> Keep {
        let quiet_us = self.log.newest_us().map_or(0, |at_us| at_us + rule.window_us());
        let storm = self.current.as_ref().filter(|it| it.active);
        let storm_us = storm.map_or(0, |it| it.quiet_us + KEPT_AFTER_QUIET_US);
        let over_us = quiet_us.max(storm_us).max(self.cool_until_us(rule));
        if over_us > now_us { Keep::Until(over_us) } else { Keep::Not }
    }

    pub(super) fn profile(&self, window_us: u64, step_us: u64, now_us: u64) -> Vec<u32> {
        let steps = usize::try_from(window_us.div_ceil(step_us)).unwrap_or(0);
        let mut counts = vec![0; steps];
        for (at_us, _) in &self.log.entries {
            let age_us = now_us - at_us;
            if age_us < window_us {
                let steps_ago = usize::try_from(age_us / step_us).unwrap_or(0);
                counts[steps - 1 - steps_ago] += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
impl Group {
    pub(super) fn newest_us(&self) -> u64 {
        self.log.newest_us().unwrap_or(0)
    }

    /// Returns the latest timestamp of the messages and storms.
    pub(super) fn latest_us(&self) -> u64 {
        let since_us = self.current.as_ref().map_or(0, |it| it.since_us);
        let until_us = self.last.as_ref().map_or(0, |it| it.until_us);
        self.newest_us().max(since_us).max(until_us)
    }
}

/// Returns the key of a group in the table. Log names have no zero byte, so keys can't collide.
fn group_key(rule: &StormRule, group: &Key) -> Vec<u8> {
    [rule.log_name().as_bytes(), b"\0", group.as_bytes()].concat()
}

impl ExpiringValue for Group {
    fn heap_bytes(&self) -> usize {
        self.log.bytes()
    }
}

impl MemoryStore {
    /// Sets how many bytes the groups of [`StormDetector`](crate::StormDetector)s may take, in this
    /// store and all its clones. Defaults to 256 MiB.
    ///
    /// A group takes about 300 bytes. Each message of the last window takes 115 to 230 bytes, and 256
    /// more if its id is longer than 40 bytes. So 256 MiB have room for more than a million messages.
    ///
    /// When the bytes are used up, expired groups are dropped first; live groups never are. A message
    /// that does not fit is not counted, and the detector returns
    /// [`StoreError::TooManyBytes`](crate::StoreError::TooManyBytes). Current storms end as usual.
    #[must_use]
    pub fn storm_bytes(self, bytes: usize) -> Self {
        self.table::<Group>().set_budget(bytes);
        self
    }

    /// Returns how many bytes the groups of storm detectors take. Some of them may have expired.
    #[must_use]
    pub fn storm_bytes_used(&self) -> usize {
        self.table::<Group>().bytes()
    }
}

impl StormStore for MemoryStore {
    fn check(&self, check: &StormCheck) -> StoreFuture<StormOutcome> {
        let StormCheck { rule, group, .. } = check;
        let groups = self.table::<Group>();
        let outcome = groups.update_within(&group_key(rule, group), |group, now_us, room| {
            let growth = |id| group.log.growth(now_us, id, rule.window_us());
            if check.message.as_ref().map_or(0, growth) > room {
                return (Err(groups.too_many_bytes()), Keep::AtLeastUntil(0));
            }
            let outcome = group.check(check, now_us);
            (Ok(outcome), group.keep(rule, now_us))
        });
        StoreFuture::ready(outcome.flatten())
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        let (window_us, step_us) = (rule.window_us(), micros(step).max(1));
        let counts = self.table::<Group>().update(&group_key(rule, group), |group, now_us| {
            (group.profile(window_us, step_us, now_us), group.keep(rule, now_us))
        });
        StoreFuture::ready(counts)
    }
}
