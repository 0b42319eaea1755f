//! [`Alerts`]: says once that a level refuses too much, and once that it no longer does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::share::Share;
use crate::tally::Tally;
use crate::thresholds::Level;

/// How often the shares are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is watched: the bucket in front and the levels behind it.
pub(crate) const WATCHED: [&str; 4] =
    ["global", Level::Institution.name(), Level::Channel.name(), Level::Receiver.name()];

/// When an alert begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The share of messages refused above which an alert begins. It is over at half of it.
    pub(crate) above: Share,
    /// How far back messages count.
    pub(crate) window: Duration,
    /// Of how many messages at least.
    pub(crate) least: u64,
}

/// An alert has begun or is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Begun(Share),
    Over(Share),
}

/// Watches the share that one level refuses of the messages it decides on.
pub(crate) struct Alert {
    bound: Bound,
    tally: Tally<2>,
    is_on: bool,
}

impl Alert {
    pub(crate) fn new(bound: Bound) -> Self {
        Self { bound, tally: Tally::new(bound.window), is_on: false }
    }

    /// Counts a message that was decided on.
    pub(crate) fn count(&mut self, refused: bool) {
        self.tally.add([true, refused]);
    }

    /// Looks at the share, and says what has changed since the last look.
    ///
    /// A share about the bound does not turn the alert on and off again: once on, it is over when
    /// the share is at most half of the bound.
    pub(crate) fn look(&mut self) -> Option<Change> {
        let [decided, refused] = self.tally.sum();
        let share = Share::ratio(refused, decided);
        let Bound { above, least, .. } = self.bound;
        if !self.is_on && decided >= least && above.is_below(refused, decided) {
            self.is_on = true;
            return Some(Change::Begun(share));
        }
        if self.is_on && !above.is_below(refused.saturating_mul(2), decided) {
            self.is_on = false;
            return Some(Change::Over(share));
        }
        None
    }
}

/// An alert for each of [`WATCHED`].
pub(crate) struct Alerts(Mutex<[Alert; WATCHED.len()]>);

impl Alerts {
    pub(crate) fn new(bound: Bound) -> Self {
        Self(Mutex::new(WATCHED.map(|_| Alert::new(bound))))
    }

    /// Counts a message on which the bucket has decided.
    pub(crate) fn global(&self, refused: bool) {
        self.alerts()[0].count(refused);
    }

    /// Counts a message on which the levels have decided; those named have refused it.
    pub(crate) fn levels(&self, refused_by: &[&str]) {
        for (alert, name) in self.alerts().iter_mut().zip(WATCHED).skip(1) {
            alert.count(refused_by.contains(&name));
        }
    }

    /// Tells whether there is an alert about `watched`.
    pub(crate) fn is_on(&self, watched: &str) -> bool {
        self.alerts().iter().zip(WATCHED).any(|(alert, name)| name == watched && alert.is_on)
    }

    /// Looks at all shares, and tells of what has changed.
    pub(crate) fn look(&self, mut tell: impl FnMut(&'static str, Change)) {
        for (alert, name) in self.alerts().iter_mut().zip(WATCHED) {
            if let Some(change) = alert.look() {
                tell(name, change);
            }
        }
    }

    /// Looks again and again, and logs what changes.
    pub(crate) async fn run(&self, bound: Bound) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Bound { above, window, .. } = bound;
        loop {
            looks.tick().await;
            self.look(|level, change| match change {
                Change::Begun(refused) => {
                    tracing::warn!(level, %refused, %above, ?window, "alert: a level refuses too much");
                }
                Change::Over(refused) => {
                    tracing::warn!(level, %refused, %above, ?window, "the alert is over");
                }
            });
        }
    }

    fn alerts(&self) -> MutexGuard<'_, [Alert; WATCHED.len()]> {
        // Counts are only ever added to, so a poisoned lock guards what is good enough.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn alert() -> Alert {
        let (above, window) = (Share::thousandths(200), Duration::from_secs(60));
        Alert::new(Bound { above, window, least: 10 })
    }

    fn count(refused: u32, of: u32, alert: &mut Alert) {
        (0..of).for_each(|index| alert.count(index < refused));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alert_begins_once_and_is_over_once() {
        let mut alert = alert();
        count(2, 10, &mut alert);
        assert_eq!(alert.look(), None, "a fifth is not more than a fifth");
        count(1, 1, &mut alert);
        assert_eq!(alert.look(), Some(Change::Begun(Share::ratio(3, 11))));
        count(100, 400, &mut alert);
        assert_eq!(alert.look(), None, "it has begun already");
        count(0, 200, &mut alert);
        assert_eq!(alert.look(), None, "it is over at half of the bound");
        advance(Duration::from_secs(63)).await;
        count(2, 19, &mut alert);
        assert_eq!(alert.look(), None);
        count(0, 1, &mut alert);
        assert_eq!(alert.look(), Some(Change::Over(Share::thousandths(100))));
        assert_eq!(alert.look(), None);
        count(9, 9, &mut alert);
        assert!(matches!(alert.look(), Some(Change::Begun(_))));
        advance(Duration::from_secs(63)).await;
        assert_eq!(alert.look(), Some(Change::Over(Share::ratio(0, 0))), "no more messages");
    }

    #[tokio::test(start_paused = true)]
    async fn few_messages_are_no_alert() {
        let mut alert = alert();
        count(9, 9, &mut alert);
        assert_eq!(alert.look(), None);
        count(1, 1, &mut alert);
        assert_eq!(alert.look(), Some(Change::Begun(Share::ALL)));
    }
}
