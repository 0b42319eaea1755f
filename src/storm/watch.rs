//! [`Watch`]: when to look at groups of which no message may come any more.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ahash::RandomState;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::key::Key;

/// How many looks are kept in mind.
const AT_MOST: usize = 10_000;
/// How long to wait before a look that failed is taken again; at first, and at the most.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest wait before a look.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Looks that are to be taken, each at its time: at groups in a storm, which nothing but time may
/// end, and for client whose answer was lost, which may have started or ended one.
#[derive(Default)]
pub(super) struct Watch {
    looks: BTreeMap<(Instant, u64), Look>,
    /// Where the looks at groups in a storm are.
    storms: HashMap<Key, (Instant, u64), RandomState>,
    number: u64,
    /// Whether a look is being taken.
    pub(super) busy: bool,
    /// The task that takes looks.
    pub(super) task: Option<JoinHandle<()>>,
}

/// A look at a group.
pub(super) struct Look {
    pub(super) group: Key,
    pub(super) call: Uuid,
    pause: Duration,
    for_storm: bool,
}

/// What there is to do.
pub(super) enum Next {
    Look(Look),
    At(Instant),
    Nothing,
}

impl Watch {
    /// Has a group looked at after so long. If that is to be done earlier already, so much the
    /// better: that look will tell how much longer to wait. Says whether anything has changed.
    pub(super) fn storm(&mut self, group: &Key, after: Duration) -> bool {
        let due = Instant::now() + after.min(LONGEST_WAIT);
        match self.storms.get(group) {
            Some((earlier, _)) if *earlier <= due => return false,
            Some(place) => drop(self.looks.remove(place)),
            None => {}
        }
        self.storms.remove(group);
        let (group, call) = (group.clone(), Uuid::new_v4());
        self.add(due, Look { group, call, pause: FIRST_PAUSE, for_storm: true });
        true
    }

    /// Has a group looked at no more.
    ///
    /// Says whether it was to be.
    pub(super) fn calm(&mut self, group: &Key) -> bool {
        let place = self.storms.remove(group);
        place.is_some_and(|place| self.looks.remove(&place).is_some())
    }

    /// Has a call asked about whose answer was lost.
    pub(super) fn unanswered(&mut self, group: &Key, call: Uuid) {
        let group = group.clone();
        let look = Look { group, call, pause: FIRST_PAUSE, for_storm: false };
        self.add(Instant::now() + FIRST_PAUSE, look);
    }

    /// Has a look that failed taken again.
    pub(super) fn again(&mut self, mut look: Look) {
        let due = Instant::now() + look.pause;
        look.pause = (look.pause * 2).min(LONGEST_PAUSE);
        if look.for_storm && self.storms.contains_key(&look.group) {
            // A message has come meanwhile. The call may still have ended the storm.
            look.for_storm = false;
        }
        self.add(due, look);
    }

    fn add(&mut self, due: Instant, look: Look) {
        if self.looks.len() >= AT_MOST {
            return;
        }
        let place = (due, self.number);
        self.number += 1;
        if look.for_storm {
            self.storms.insert(look.group.clone(), place);
        }
        self.looks.insert(place, look);
    }

    pub(super) fn next(&mut self) -> Next {
        let Some(first) = self.looks.first_entry() else { return Next::Nothing };
        let (due, _) = *first.key();
        if due > Instant::now() {
            return Next::At(due);
        }
        let look = first.remove();
        if look.for_storm {
            self.storms.remove(&look.group);
        }
        self.busy = true;
        Next::Look(look)
    }

    /// Tells whether no look is to be taken.
    pub(super) fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    /// Tells whether no look is to be taken, and none is being taken.
    pub(super) fn is_idle(&self) -> bool {
        self.looks.is_empty() && !self.busy
    }

    /// Returns how many groups in a storm are looked at.
    pub(super) fn storms(&self) -> usize {
        self.storms.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn no_more_looks_than_may_be_are_kept_in_mind() {
        let mut watch = Watch::default();
        for group in 0..AT_MOST + 1_000 {
            watch.storm(&Key::from(group.to_be_bytes()), SECOND);
            watch.unanswered(&"lobby".into(), Uuid::new_v4());
        }
        assert_eq!(watch.looks.len(), AT_MOST);
        assert!(watch.storms() <= AT_MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_look_at_a_group_is_the_one_that_is_taken() {
        let (mut watch, lobby) = (Watch::default(), Key::from("lobby"));
        assert!(watch.storm(&lobby, SECOND * 3));
        assert!(!watch.storm(&lobby, SECOND * 5), "the look at three will tell");
        assert!(watch.storm(&lobby, SECOND));
        assert!(matches!(watch.next(), Next::At(due) if due == Instant::now() + SECOND));
        tokio::time::advance(SECOND).await;
        assert!(matches!(watch.next(), Next::Look(look) if look.group == lobby));
        assert!(matches!(watch.next(), Next::Nothing), "there is one for each group");
        assert!(!watch.is_idle(), "it is being taken");
        assert!(watch.storm(&lobby, SECOND) && watch.calm(&lobby));
        assert!(!watch.calm(&lobby) && watch.looks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_is_taken_again_under_the_same_identity_and_ever_later() {
        let (mut watch, call) = (Watch::default(), Uuid::new_v4());
        watch.unanswered(&"lobby".into(), call);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Next::At(due) = watch.next() else { panic!("it is not due yet") };
            pauses.push(due - Instant::now());
            tokio::time::advance(due - Instant::now()).await;
            let Next::Look(look) = watch.next() else { panic!("it is due") };
            assert_eq!(look.call, call);
            watch.again(look);
        }
        let millis: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [200, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
