//! [`Rechecks`]: the groups to check again, and when.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ahash::RandomState;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::key::Key;

/// How many rechecks may be scheduled. The end of a storm beyond that is found by the next message of its
/// group only.
const CAPACITY: usize = 100_000;
/// The pause before a failed recheck is repeated. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A recheck is scheduled at most this far ahead.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The scheduled rechecks: of groups in a storm, which only the passing of time may end, and of calls
/// whose reply was lost, which may have started or ended a storm.
#[derive(Default)]
pub(super) struct Rechecks {
    /// By their times, and by their calls so that the keys are unique.
    by_time: BTreeMap<(Instant, Uuid), Recheck>,
    /// The place in `by_time` of each group in a storm.
    storms: HashMap<Key, (Instant, Uuid), RandomState>,
    /// Whether the task is running a recheck.
    pub(super) is_running: bool,
    /// The task that runs the rechecks.
    pub(super) task: Option<JoinHandle<()>>,
}

/// A check of a group without a message.
pub(super) struct Recheck {
    pub(super) group: Key,
    pub(super) call: Uuid,
    pause: Duration,
    is_for_storm: bool,
}

/// What the task does next.
pub(super) enum NextRecheck {
    Run(Recheck),
    WaitUntil(Instant),
    None,
}

impl Rechecks {
    /// Schedules a recheck of a group in a storm, and returns whether the schedule has changed.
    ///
    /// An earlier recheck of the group replaces this one: its outcome says when to check next.
    pub(super) fn schedule(&mut self, group: &Key, after: Duration) -> bool {
        let due = Instant::now() + after.min(LONGEST_WAIT);
        match self.storms.get(group) {
            Some((earlier, _)) if *earlier <= due => return false,
            Some(place) => drop(self.by_time.remove(place)),
            None => {}
        }
        self.storms.remove(group);
        let (group, call) = (group.clone(), Uuid::new_v4());
        self.add(due, Recheck { group, call, pause: FIRST_PAUSE, is_for_storm: true });
        true
    }

    /// Cancels the recheck of a group that is no longer in a storm, and returns whether there was one.
    pub(super) fn cancel(&mut self, group: &Key) -> bool {
        let place = self.storms.remove(group);
        place.is_some_and(|place| self.by_time.remove(&place).is_some())
    }

    /// Schedules the repetition of a call whose reply was lost.
    pub(super) fn schedule_lost(&mut self, group: &Key, call: Uuid) {
        let group = group.clone();
        let recheck = Recheck { group, call, pause: FIRST_PAUSE, is_for_storm: false };
        self.add(Instant::now() + FIRST_PAUSE, recheck);
    }

    /// Schedules a failed recheck again, with the same call id.
    pub(super) fn retry(&mut self, mut recheck: Recheck) {
        let due = Instant::now() + recheck.pause;
        recheck.pause = (recheck.pause * 2).min(LONGEST_PAUSE);
        if recheck.is_for_storm && self.storms.contains_key(&recheck.group) {
            // A message has scheduled the group's next recheck meanwhile. This call is repeated too,
            // because it may have ended the storm.
            recheck.is_for_storm = false;
        }
        self.add(due, recheck);
    }

    fn add(&mut self, due: Instant, recheck: Recheck) {
        if self.by_time.len() >= CAPACITY {
            return;
        }
        let place = (due, recheck.call);
        if recheck.is_for_storm {
            self.storms.insert(recheck.group.clone(), place);
        }
        self.by_time.insert(place, recheck);
    }

    /// Removes the first recheck if it is due, and marks it as running.
    pub(super) fn next(&mut self) -> NextRecheck {
        let Some(first) = self.by_time.first_entry() else { return NextRecheck::None };
        let (due, _) = *first.key();
        if due > Instant::now() {
            return NextRecheck::WaitUntil(due);
        }
        let recheck = first.remove();
        if recheck.is_for_storm {
            self.storms.remove(&recheck.group);
        }
        self.is_running = true;
        NextRecheck::Run(recheck)
    }

    /// Returns whether no recheck is scheduled.
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// Returns whether no recheck is scheduled or running.
    pub(super) fn is_idle(&self) -> bool {
        self.by_time.is_empty() && !self.is_running
    }

    /// Returns how many groups in a storm have a scheduled recheck.
    pub(super) fn storms(&self) -> usize {
        self.storms.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn number_of_rechecks_is_bounded() {
        let mut rechecks = Rechecks::default();
        for group in 0..CAPACITY + 1_000 {
            rechecks.schedule(&Key::from(group.to_be_bytes()), SECOND);
            rechecks.schedule_lost(&"lobby".into(), Uuid::new_v4());
        }
        assert_eq!(rechecks.by_time.len(), CAPACITY);
        assert!(rechecks.storms() <= CAPACITY);
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_recheck_of_a_group_runs() {
        let (mut rechecks, lobby) = (Rechecks::default(), Key::from("lobby"));
        assert!(rechecks.schedule(&lobby, SECOND * 3));
        assert!(!rechecks.schedule(&lobby, SECOND * 5), "the earlier recheck replaces it");
        assert!(rechecks.schedule(&lobby, SECOND));
        let next = rechecks.next();
        assert!(matches!(next, NextRecheck::WaitUntil(due) if due == Instant::now() + SECOND));
        tokio::time::advance(SECOND).await;
        assert!(matches!(rechecks.next(), NextRecheck::Run(recheck) if recheck.group == lobby));
        assert!(matches!(rechecks.next(), NextRecheck::None), "one recheck a group");
        assert!(!rechecks.is_idle(), "the recheck is running");
        assert!(rechecks.schedule(&lobby, SECOND) && rechecks.cancel(&lobby));
        assert!(!rechecks.cancel(&lobby) && rechecks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_recheck_is_retried_with_backoff() {
        let (mut rechecks, call) = (Rechecks::default(), Uuid::new_v4());
        rechecks.schedule_lost(&"lobby".into(), call);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let NextRecheck::WaitUntil(due) = rechecks.next() else { panic!("not due yet") };
            pauses.push(due - Instant::now());
            tokio::time::advance(due - Instant::now()).await;
            let NextRecheck::Run(recheck) = rechecks.next() else { panic!("due") };
            assert_eq!(recheck.call, call);
            rechecks.retry(recheck);
        }
        let millis: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [200, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
