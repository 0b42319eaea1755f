//! Storms in process: implements [`StormStore`] for [`MemoryStore`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::log::Log;
use super::rule::StormRule;
use super::store::{Ended, Ongoing, Started, StormCheck, StormOutcome, StormStore};
use crate::MemoryStore;
use crate::key::Key;
use crate::store::{ExpiringValue, Keep, StoreFuture};
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

impl Current {
    /// Notes a reminder if it is due, and returns after how many microseconds the next is.
    fn remind(&mut self, check: &StormCheck, count: u32, now_us: u64) -> u64 {
        let Some(every_us) = check.remind_every.map(micros) else { return u64::MAX };
        let mut last_us = self.reminded.as_ref().map_or(self.since_us, |it| it.due_us);
        if now_us - last_us >= every_us {
            // Only the latest of those that are due.
            last_us = now_us - (now_us - self.since_us) % every_us;
            let (due_us, peak, call) = (last_us, self.peak, check.call);
            self.reminded = Some(Reminded { due_us, count, peak, call });
        }
        last_us.saturating_add(every_us) - now_us
    }

    /// Returns the last reminder, if the check caused it.
    fn ongoing(&self, check: &StormCheck, now_us: u64) -> Option<Ongoing> {
        let reminded = self.reminded.as_ref().filter(|it| it.call == check.call)?;
        Some(Ongoing {
            ago: Duration::from_micros(now_us - reminded.due_us),
            lasted: Duration::from_micros(reminded.due_us - self.since_us),
            count: reminded.count,
            peak: reminded.peak,
        })
    }
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
            let (active, peak, below_us, quiet_us, reminded) = (true, 0, 0, 0, None);
            self.current =
                Some(Current { active, since_us, began, call, peak, below_us, quiet_us, reminded });
        }
        let mut outcome = StormOutcome::new(SystemTime::now(), count, message.is_some() && !added);
        if let Some(current) = self.current.as_mut().filter(|it| it.active) {
            let below_at = self.log.below_at(ends_below, window_us);
            if added || starts {
                current.below_us = below_at.unwrap_or(now_us);
                current.peak = current.peak.max(count);
                current.quiet_us = self.log.newest_us().unwrap_or(now_us) + window_us;
            }
            let below_after_us = below_at.map_or(1, |at_us| at_us - now_us);
            let remind_after_us = current.remind(check, count, now_us);
            outcome.recheck_after =
                Some(Duration::from_micros(below_after_us.min(remind_after_us)));
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
        outcome.ongoing = self.current.as_ref().and_then(|it| it.ongoing(check, now_us));
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
    /// Sets how many bytes the groups of [`StormDetector`](crate::storm::StormDetector)s may take, in this
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
            if !room.reserve(check.message.as_ref().map_or(0, growth)) {
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
