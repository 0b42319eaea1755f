//! [`KnownMutes`]: the mutes that this process has seen, for an outage of the store.

use tokio::time::Instant;

use super::decision::Mute;
use crate::key::Key;
use crate::store::{ExpiringMap, ExpiringValue, Keep};
use crate::time::micros;

/// How many mutes and lifts are known. Further ones are not noted until others end.
const CAPACITY: usize = 65_536;
/// How long a lift is known. A reply that was sent before it takes no longer.
const LIFT_KEPT_US: u64 = 60_000_000;

/// The mutes that the store has replied with, each until it ends.
///
/// Replies may arrive in another order than the store sent them. Each is dated by the instant before
/// its request was sent, and an older one changes nothing. So a reply that was under way during a lift
/// does not undo it.
pub(super) struct KnownMutes(ExpiringMap<Known>);

/// What is known of one sender.
#[derive(Default)]
struct Known {
    /// The instant before the request was sent, on the clock of the map.
    seen_us: u64,
    /// The mute and its end on the clock of the map. `None` after a lift.
    mute: Option<Box<(Mute, u64)>>,
}

impl ExpiringValue for Known {
    fn heap_bytes(&self) -> usize {
        self.mute.as_ref().map_or(0, |_| size_of::<(Mute, u64)>())
    }
}

impl KnownMutes {
    pub(super) fn new() -> Self {
        Self(ExpiringMap::new(CAPACITY))
    }

    /// Notes the reply to a request that was sent after `sent`: the active mute of a sender, if there
    /// is one.
    pub(super) fn observe(&self, sender: &Key, sent: Instant, mute: Option<&Mute>) {
        self.update(sender, |known, now_us| {
            // From before the request was sent, so that no mute outlasts that of the store.
            let sent_us = now_us.saturating_sub(micros(sent.elapsed()));
            if known.seen_us > sent_us {
                return Keep::AtLeastUntil(0);
            }
            let Some(mute) = mute else { return Keep::Not };
            let until_us = sent_us.saturating_add(micros(mute.remaining()));
            *known = Known { seen_us: sent_us, mute: Some(Box::new((mute.clone(), until_us))) };
            Keep::Until(until_us)
        });
    }

    /// Forgets the mute of a sender, and replies to requests that were sent before.
    pub(super) fn lift(&self, sender: &Key) {
        self.update(sender, |known, now_us| {
            *known = Known { seen_us: now_us, mute: None };
            Keep::Until(now_us + LIFT_KEPT_US)
        });
    }

    /// Returns the mute of a sender, with the time that is left of it.
    pub(super) fn get(&self, sender: &Key) -> Option<Mute> {
        let read = |known: &Known, now_us| {
            let (mute, until_us) = known.mute.as_deref()?;
            let remaining = std::time::Duration::from_micros(until_us - now_us);
            Some(Mute::new(mute.reason(), remaining, mute.until()))
        };
        self.0.read(sender.as_bytes(), read)?
    }

    /// Without room for another sender, nothing is noted.
    fn update(&self, sender: &Key, change: impl Fn(&mut Known, u64) -> Keep) {
        let change = |known: &mut Known, now_us| ((), change(known, now_us));
        let _ = self.0.update(sender.as_bytes(), change);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::decision::Reason;
    use super::super::rule::Rule;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn mute(remaining: Duration) -> Mute {
        Mute::new(Reason::new(Rule::manual(remaining), 0, 0), remaining, SystemTime::now())
    }

    #[tokio::test(start_paused = true)]
    async fn known_mute_ends_no_later_than_the_stores() {
        let (known, alice) = (KnownMutes::new(), Key::from("alice"));
        let sent = Instant::now();
        tokio::time::advance(SECOND).await;
        known.observe(&alice, sent, Some(&mute(10 * SECOND)));
        assert_eq!(known.get(&alice).unwrap().remaining(), 9 * SECOND);
        assert!(known.get(&"bob".into()).is_none());
        tokio::time::advance(9 * SECOND).await;
        assert!(known.get(&alice).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn older_reply_changes_nothing() {
        let (known, alice) = (KnownMutes::new(), Key::from("alice"));
        let first = Instant::now();
        tokio::time::advance(SECOND).await;
        known.observe(&alice, Instant::now(), Some(&mute(20 * SECOND)));
        known.observe(&alice, first, None);
        known.observe(&alice, first, Some(&mute(10 * SECOND)));
        assert_eq!(known.get(&alice).unwrap().remaining(), 20 * SECOND);
        known.observe(&alice, Instant::now(), None);
        assert!(known.get(&alice).is_none());

        let before = Instant::now();
        tokio::time::advance(SECOND).await;
        known.lift(&alice);
        known.observe(&alice, before, Some(&mute(10 * SECOND)));
        assert!(known.get(&alice).is_none(), "the reply was under way during the lift");
        tokio::time::advance(SECOND).await;
        known.observe(&alice, Instant::now(), Some(&mute(10 * SECOND)));
        assert!(known.get(&alice).is_some(), "muted again");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_known_mutes_is_bounded() {
        let known = KnownMutes::new();
        for sender in 0..CAPACITY as u64 + 1_000 {
            known.observe(&Key::from(sender), Instant::now(), Some(&mute(SECOND)));
        }
        assert_eq!(known.0.len(), CAPACITY);
        tokio::time::advance(SECOND).await;
        known.observe(&"alice".into(), Instant::now(), Some(&mute(SECOND)));
        assert!(known.get(&"alice".into()).is_some(), "ended mutes make room");
    }
}
