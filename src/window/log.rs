//! The exact algorithm, pure: a log of admissions and what it says about a quota.
//!
//! Time is in microseconds since any fixed origin. Every store must agree with this module.

use smallvec::SmallVec;
use uuid::Uuid;

use super::outcome::QuotaState;
use crate::quota::Quota;

/// One admission: when, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at_us: u64,
    pub(crate) id: Uuid,
}

/// The admissions of one key under one policy, oldest first.
///
/// Those that have left every window stay in front until they are as many as the others, so that
/// an admission does not move them all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Without an allocation for those who come once, who are most of a crowd.
    entries: SmallVec<[Entry; 1]>,
}

impl Log {
    /// Creates a log without entries.
    pub(crate) const fn new() -> Self {
        Self { entries: SmallVec::new_const() }
    }

    /// Says how `quota` stands at `now_us` for a request of cost `cost`.
    ///
    /// The request fits if the `cost` places it needs are free, which the
    /// `limit - cost + 1`-th newest entry alone decides: if it has left the window, so has
    /// everything older. A cost above the limit never fits; its wait is one whole window.
    pub(crate) fn state(&self, now_us: u64, quota: Quota, cost: u32) -> QuotaState {
        let window_us = quota.window_us();
        let left = self.left(now_us, window_us);
        let used = self.entries.len() - left;
        let until_gone = |entry: &Entry| entry.at_us + window_us - now_us;

        let must_leave = quota.limit().checked_sub(cost).map(|newer_that_may_stay| {
            self.entries.len().checked_sub(newer_that_may_stay as usize + 1)
        });
        QuotaState {
            remaining: quota.limit().saturating_sub(u32::try_from(used).unwrap_or(u32::MAX)),
            wait_us: match must_leave {
                None => window_us,
                Some(Some(index)) if index >= left => until_gone(&self.entries[index]),
                Some(_) => 0,
            },
            reset_us: self.entries.get(left).map_or(0, until_gone),
        }
    }

    /// Returns how many entries, all of them in front, have left a window.
    fn left(&self, now_us: u64, window_us: u64) -> usize {
        match self.entries.first() {
            Some(oldest) if oldest.at_us + window_us <= now_us => {
                self.entries.partition_point(|entry| entry.at_us + window_us <= now_us)
            }
            _ => 0,
        }
    }

    /// Records `cost` entries of one request, in a log that is full with `limit` of them.
    ///
    /// A timestamp older than the newest, after a clock has stepped back, takes its place in order.
    pub(crate) fn add(&mut self, entry: Entry, cost: u32, limit: u32) {
        let (length, wanted) = (self.entries.len(), self.entries.len() + cost as usize);
        if wanted > self.entries.capacity() {
            // Up to the limit no more than that: few logs ever hold more.
            let room = match limit as usize {
                limit if wanted <= limit => (2 * length).clamp(wanted, limit),
                _ => wanted.max(length + length / 2),
            };
            self.entries.reserve_exact(room - length);
        }
        // Nearly always at the end. A reply that overtook others, or a clock that has stepped back,
        // has its place a little before it.
        let older = self.entries.iter().rev().take_while(|other| other.at_us > entry.at_us).count();
        if older == 0 {
            (0..cost).for_each(|_| self.entries.push(entry));
        } else {
            self.entries.insert_many(length - older, (0..cost).map(|_| entry));
        }
    }

    /// Records an admission that was decided elsewhere, unless it is there already; raises the
    /// timestamp of one that is if `raises`. Returns how many entries were missing.
    pub(crate) fn restore(&mut self, entry: Entry, cost: u32, limit: u32, raises: bool) -> u32 {
        match self.newest_of(entry.id) {
            Some(index) if !raises || self.entries[index].at_us >= entry.at_us => 0,
            Some(_) => {
                self.remove(entry.id);
                self.add(entry, cost, limit);
                0
            }
            None => {
                self.add(entry, cost, limit);
                cost
            }
        }
    }

    /// Returns where the newest entry of a request is. The newest, for one that has left the window
    /// may still stand in front of it.
    fn newest_of(&self, id: Uuid) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.id == id)
    }

    /// Returns the entries that have not left the longest window, oldest first.
    pub(crate) fn live(&self, now_us: u64, longest_window_us: u64) -> &[Entry] {
        &self.entries[self.left(now_us, longest_window_us)..]
    }

    /// Removes the entries of one request, and says how many there were.
    ///
    /// They are one next to the other, and looked for from the newest on: what is cancelled was
    /// admitted a moment ago, so that a long log is not gone through.
    pub(crate) fn remove(&mut self, id: Uuid) -> usize {
        let Some(last) = self.newest_of(id) else { return 0 };
        let same = self.entries[..=last].iter().rev().take_while(|entry| entry.id == id).count();
        self.entries.drain(last + 1 - same..=last);
        same
    }

    /// Removes the entries up to an instant, and says how many there were.
    pub(crate) fn remove_until(&mut self, at_us: u64) -> usize {
        let old = self.entries.partition_point(|entry| entry.at_us <= at_us);
        self.entries.drain(..old);
        old
    }

    /// Returns how many entries there are, some of which may have left the longest window.
    #[cfg(feature = "redis")]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the timestamp of a request that has not left the longest window.
    pub(crate) fn find(&self, id: Uuid, now_us: u64, longest_window_us: u64) -> Option<u64> {
        let live = self.live(now_us, longest_window_us);
        live.iter().rev().find(|entry| entry.id == id).map(|entry| entry.at_us)
    }

    /// Forgets what has left the longest window, if it is worth it.
    pub(crate) fn forget(&mut self, now_us: u64, longest_window_us: u64) {
        let left = self.left(now_us, longest_window_us);
        if left > 0 && left * 2 >= self.entries.len() {
            self.forget_all(now_us, longest_window_us);
            // A burst under a high limit must not hold its memory for ever.
            if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4 {
                self.entries.shrink_to_fit();
            }
        }
    }

    /// Forgets what has left the longest window.
    pub(crate) fn forget_all(&mut self, now_us: u64, longest_window_us: u64) {
        self.entries.drain(..self.left(now_us, longest_window_us));
    }

    /// Returns the timestamp of the newest entry.
    pub(crate) fn newest_us(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.at_us)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn quota(limit: u32, window_us: u64) -> Quota {
        Quota::new(limit, Duration::from_micros(window_us))
    }

    fn log(timestamps: &[u64]) -> Log {
        let mut log = Log::default();
        for (id, at_us) in timestamps.iter().enumerate() {
            log.add(Entry { at_us: *at_us, id: Uuid::from_u128(id as u128) }, 1, 5);
        }
        log
    }

    #[test]
    fn an_entry_exactly_one_window_old_is_out() {
        let log = log(&[100]);
        assert_eq!(log.state(109, quota(1, 10), 1).wait_us, 1);
        assert_eq!(log.state(110, quota(1, 10), 1).wait_us, 0);
        assert_eq!(log.state(110, quota(1, 10), 1).remaining, 1);
    }

    #[test]
    fn after_the_limit_is_lowered_the_wait_is_for_the_limit_th_newest() {
        let log = log(&[0, 10, 20, 30]);
        assert_eq!(
            log.state(40, quota(2, 100), 1).wait_us,
            80,
            "the third newest may stay no longer"
        );
        assert_eq!(log.state(40, quota(4, 100), 1).wait_us, 60);
        assert_eq!(log.state(40, quota(5, 100), 1).wait_us, 0);
    }

    #[test]
    fn a_weight_waits_for_as_many_places() {
        let log = log(&[0, 10, 20, 30]);
        assert_eq!(log.state(40, quota(6, 100), 2).wait_us, 0);
        assert_eq!(log.state(40, quota(6, 100), 3).wait_us, 60);
        assert_eq!(log.state(40, quota(6, 100), 5).wait_us, 80);
    }

    #[test]
    fn a_stamp_from_before_a_backward_step_keeps_the_order() {
        let mut log = log(&[100, 200]);
        log.add(Entry { at_us: 150, id: Uuid::from_u128(9) }, 1, 5);
        assert_eq!(log.state(200, quota(2, 100), 1).wait_us, 50);
        assert_eq!(log.newest_us(), Some(200));
    }

    #[test]
    fn what_is_restored_takes_its_place_in_order_and_counts_once() {
        let mut log = log(&[100, 300]);
        let entry = |at_us, id| Entry { at_us, id: Uuid::from_u128(id) };
        log.restore(entry(200, 9), 2, 5, true);
        log.restore(entry(150, 9), 2, 5, true);
        log.restore(entry(250, 0), 1, 5, true);
        log.restore(entry(290, 0), 1, 5, false);
        let timestamps: Vec<u64> = log.live(300, 1000).iter().map(|entry| entry.at_us).collect();
        assert_eq!(timestamps, [200, 200, 250, 300], "a timestamp is raised and never lowered");
    }

    #[test]
    fn removing_one_request_leaves_the_others() {
        let mut log = log(&[5, 5, 5]);
        assert_eq!(log.remove(Uuid::from_u128(1)), 1);
        assert_eq!(log.remove(Uuid::from_u128(1)), 0);
        assert_eq!(log.find(Uuid::from_u128(0), 6, 100), Some(5));
        assert_eq!(log.state(6, quota(3, 100), 1).remaining, 1);
    }
}
