//! [`Log`]: the admissions of a key, and the state of a quota that follows from them.

use uuid::Uuid;

use super::entries::{Entries, Entry, count_first};
use super::log_id::LogId;
use super::outcome::LogOutcome;
use super::state::QuotaState;
use crate::quota::Quota;

/// What a log holds of the window of one quota.
#[derive(Clone, Debug)]
pub(crate) struct QuotaReading {
    /// How many entries are in the window.
    pub(crate) taken: u32,
    /// The newest entry that has to leave before the request fits. It may have left already.
    pub(crate) must_leave: Option<Entry>,
    /// The oldest entries in the window.
    pub(crate) oldest: Vec<Entry>,
}

/// The admissions of one key under one policy, oldest first.
///
/// Expired entries stay at the front until the next admission.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: Entries,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self { entries: Entries::Empty }
    }

    /// Returns what the log says of a request of cost `cost`, without its ban.
    pub(crate) fn outcome(&self, log: &LogId, id: Uuid, now_us: u64, cost: u32) -> LogOutcome {
        let held_us = self.held_us(log, id, now_us);
        LogOutcome::of(&log.policy, |quota| {
            self.state(now_us, quota, cost_beside(held_us, now_us, quota, cost))
        })
    }

    /// Returns the timestamp of the request's entry if it takes no place again.
    fn held_us(&self, log: &LogId, id: Uuid, now_us: u64) -> Option<u64> {
        let policy = &log.policy;
        let find = || self.find(log.entry_id(id), now_us, policy.retention_us());
        if policy.refreshes() { find() } else { None }
    }

    /// Returns the state of `quota` at `now_us` for a request of cost `cost`.
    ///
    /// The request fits if `cost` places are free. The `limit - cost + 1`-th newest entry decides
    /// this alone: if it has left the window, so have all older ones. A cost above the limit never
    /// fits, and its wait is one whole window.
    pub(crate) fn state(&self, now_us: u64, quota: Quota, cost: u32) -> QuotaState {
        let (entries, window_us) = (&self.entries[..], quota.window_us());
        let expired = count_expired(entries, now_us, window_us);
        let used = entries.len() - expired;
        let time_left = |entry: &Entry| entry.at_us + window_us - now_us;

        let must_leave = must_leave(entries, quota, cost);
        QuotaState {
            remaining: quota.limit().saturating_sub(u32::try_from(used).unwrap_or(u32::MAX)),
            wait_us: match must_leave {
                None => window_us,
                Some(Some(index)) if index >= expired => time_left(&entries[index]),
                Some(_) => 0,
            },
            reset_us: entries.get(expired).map_or(0, time_left),
        }
    }

    /// Returns what the log holds of the window of `quota`, for a new request of cost `cost`, with at most
    /// `most` of its entries.
    pub(crate) fn read(
        &self,
        log: &LogId,
        now_us: u64,
        quota: Quota,
        cost: u32,
        most: usize,
    ) -> QuotaReading {
        let cost = cost_beside(self.held_us(log, Uuid::nil(), now_us), now_us, quota, cost);
        let live = self.live(now_us, quota.window_us());
        let must_leave = must_leave(&self.entries, quota, cost).flatten();
        QuotaReading {
            taken: u32::try_from(live.len()).unwrap_or(u32::MAX),
            must_leave: must_leave.map(|index| self.entries[index]),
            oldest: live[..live.len().min(most)].to_vec(),
        }
    }

    /// Returns how many bytes the log has on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    /// Adds `cost` entries of one request. `limit` is the highest limit of the policy.
    ///
    /// The entries stay ordered by timestamp, also after the clock has stepped back.
    pub(crate) fn add(&mut self, entry: Entry, cost: u32, limit: u32) {
        // Nearly always none: only after the clock has stepped back, or after a reply that overtook
        // others.
        let newer = self.entries.iter().rev().take_while(|other| other.at_us > entry.at_us).count();
        let index = self.entries.len() - newer;
        self.entries.insert(index, entry, cost as usize, limit as usize);
    }

    /// Adds an admission by another store, unless the log has its identity. Then an older timestamp is
    /// raised, and a request that was settled keeps its number of entries.
    pub(crate) fn restore(&mut self, entry: Entry, cost: u32, limit: u32) {
        match self.newest_of(entry.id) {
            Some(index) if self.entries[index].at_us >= entry.at_us => {}
            Some(_) => {
                let held = self.remove(entry.id);
                self.add(entry, held as u32, limit);
            }
            None => self.add(entry, cost, limit),
        }
    }

    /// Returns the index of a request's newest entry. The log may still hold an older entry of the
    /// same identity that has left the window.
    fn newest_of(&self, id: Uuid) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.id == id)
    }

    /// Returns the entries that have not left a window, oldest first.
    pub(crate) fn live(&self, now_us: u64, window_us: u64) -> &[Entry] {
        &self.entries[count_expired(&self.entries, now_us, window_us)..]
    }

    /// Removes the entries of one request, and returns their number.
    pub(crate) fn remove(&mut self, id: Uuid) -> usize {
        self.settle(id, 0)
    }

    /// Sets how many entries a request has, if it has any. They keep their timestamp. Returns how
    /// many there were.
    ///
    /// The entries are adjacent. The search begins at the newest entry, because a request is usually
    /// settled or cancelled soon after its admission.
    pub(crate) fn settle(&mut self, id: Uuid, cost: u32) -> usize {
        let Some(last) = self.newest_of(id) else { return 0 };
        let (entry, end) = (self.entries[last], last + 1);
        let held = self.entries[..end].iter().rev().take_while(|other| **other == entry).count();
        match (cost as usize).checked_sub(held) {
            Some(missing) => self.entries.insert(end, entry, missing, usize::MAX),
            None => self.entries.remove(end - (held - cost as usize)..end),
        }
        held
    }

    /// Removes the entries up to and including an instant.
    pub(crate) fn remove_until(&mut self, at_us: u64) {
        self.entries.remove_first(count_first(&self.entries, |entry| entry.at_us <= at_us));
    }

    /// Returns the timestamp of a request that has not left the longest window.
    pub(crate) fn find(&self, id: Uuid, now_us: u64, longest_window_us: u64) -> Option<u64> {
        let live = self.live(now_us, longest_window_us);
        live.iter().rev().find(|entry| entry.id == id).map(|entry| entry.at_us)
    }

    /// Removes the entries that have left the longest window.
    pub(crate) fn remove_expired(&mut self, now_us: u64, longest_window_us: u64) {
        self.entries.remove_first(count_expired(&self.entries, now_us, longest_window_us));
    }

    pub(crate) fn newest_us(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.at_us)
    }
}

/// Returns how many entries have left a window. They are the oldest ones.
/// Returns how many places a request takes in the window of `quota`: none if its entry is there.
fn cost_beside(held_us: Option<u64>, now_us: u64, quota: Quota, cost: u32) -> u32 {
    if held_us.is_some_and(|at_us| at_us + quota.window_us() > now_us) { 0 } else { cost }
}

fn count_expired(entries: &[Entry], now_us: u64, window_us: u64) -> usize {
    count_first(entries, |entry| entry.at_us + window_us <= now_us)
}

/// Returns the index of the newest entry that has to leave before a request fits, if there is one, or
/// `None` if the request never fits.
fn must_leave(entries: &[Entry], quota: Quota, cost: u32) -> Option<Option<usize>> {
    let may_stay = quota.limit().checked_sub(cost)?;
    Some(entries.len().checked_sub(may_stay as usize + 1))
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
    fn entry_exactly_one_window_old_is_out() {
        let log = log(&[100]);
        assert_eq!(log.state(109, quota(1, 10), 1).wait_us, 1);
        assert_eq!(log.state(110, quota(1, 10), 1).wait_us, 0);
        assert_eq!(log.state(110, quota(1, 10), 1).remaining, 1);
    }

    #[test]
    fn lower_limit_waits_for_the_right_entry() {
        let log = log(&[0, 10, 20, 30]);
        assert_eq!(log.state(40, quota(2, 100), 1).wait_us, 80, "the second newest has to leave");
        assert_eq!(log.state(40, quota(4, 100), 1).wait_us, 60);
        assert_eq!(log.state(40, quota(5, 100), 1).wait_us, 0);
    }

    #[test]
    fn cost_waits_for_as_many_places() {
        let log = log(&[0, 10, 20, 30]);
        assert_eq!(log.state(40, quota(6, 100), 2).wait_us, 0);
        assert_eq!(log.state(40, quota(6, 100), 3).wait_us, 60);
        assert_eq!(log.state(40, quota(6, 100), 5).wait_us, 80);
    }

    #[test]
    fn entries_stay_ordered_after_a_clock_step() {
        let mut log = log(&[100, 200]);
        log.add(Entry { at_us: 150, id: Uuid::from_u128(9) }, 1, 5);
        assert_eq!(log.state(200, quota(2, 100), 1).wait_us, 50);
        assert_eq!(log.newest_us(), Some(200));
    }

    #[test]
    fn restored_entries_are_ordered_and_unique() {
        let mut log = log(&[100, 300]);
        let entry = |at_us, id| Entry { at_us, id: Uuid::from_u128(id) };
        log.restore(entry(200, 9), 2, 5);
        log.restore(entry(150, 9), 2, 5);
        log.restore(entry(250, 0), 1, 5);
        let timestamps: Vec<u64> = log.live(300, 1000).iter().map(|entry| entry.at_us).collect();
        assert_eq!(timestamps, [200, 200, 250, 300], "timestamps are raised, never lowered");
    }

    #[test]
    fn settled_entries_stay_together() {
        let mut log = log(&[5, 5, 5, 7]);
        let id = Uuid::from_u128(1);
        for cost in [4, 4, 2, 1] {
            log.settle(id, cost);
            let ids: Vec<_> = log.live(7, 100).iter().map(|entry| entry.id.as_u128()).collect();
            let expected = [vec![0], vec![1; cost as usize], vec![2, 3]].concat();
            assert_eq!(ids, expected, "settled at {cost}");
        }
        assert_eq!(log.find(id, 7, 100), Some(5), "the timestamp is kept");
        assert_eq!((log.settle(id, 0), log.settle(id, 3)), (1, 0));
    }

    #[test]
    fn restored_request_keeps_its_settled_cost() {
        let mut log = log(&[100]);
        log.settle(Uuid::from_u128(0), 3);
        let entry = Entry { at_us: 200, id: Uuid::from_u128(0) };
        log.restore(entry, 1, 5);
        assert_eq!(log.live(200, 100), [entry; 3]);
    }

    #[test]
    fn remove_keeps_other_requests() {
        let mut log = log(&[5, 5, 5]);
        assert_eq!(log.remove(Uuid::from_u128(1)), 1);
        assert_eq!(log.remove(Uuid::from_u128(1)), 0);
        assert_eq!(log.find(Uuid::from_u128(0), 6, 100), Some(5));
        assert_eq!(log.state(6, quota(3, 100), 1).remaining, 1);
    }
}
