//! [`Alerts`]: says once that a level refuses too much, and once that it no longer does.

use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use crate::share::Share;
use crate::tally::{Tally, window};
use crate::thresholds::Level;
use example_support::lock;

/// How often the shares are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is watched: the bucket in front and the levels behind it.
pub(crate) const WATCHED: [&str; 4] =
    ["global", Level::Institution.name(), Level::Channel.name(), Level::Receiver.name()];

/// When an alert begins.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Logs an alert when a level refuses more than this share of its messages, and again when it
    /// refuses no more than half of it.
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    pub(crate) alert_above: Share,

    /// How far back refusals count.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = window)]
    pub(crate) alert_window: Duration,

    /// How many messages there must be for an alert.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) alert_least: u64,
}

/// Watches the share that one level refuses of the messages it decides on.
pub(crate) struct Alert {
    bound: Bound,
    tally: Tally<2>,
    is_on: bool,
}

impl Alert {
    pub(crate) fn new(bound: Bound) -> Self {
        Self { bound, tally: Tally::new(bound.alert_window), is_on: false }
    }

    /// Counts a message that was decided on.
    pub(crate) fn count(&mut self, refused: bool) {
        self.tally.add([true, refused]);
    }

    /// Looks at the share, and returns it if the alert has just been turned on or off.
    ///
    /// A share about the bound does not turn the alert on and off again: once on, it is over when
    /// the share is at most half of the bound.
    pub(crate) fn look(&mut self) -> Option<Share> {
        let [decided, refused] = self.tally.sum();
        let Bound { alert_above: above, alert_least: least, .. } = self.bound;
        let turned = match self.is_on {
            false => decided >= least && above.is_below(refused, decided),
            true => !above.is_below(refused.saturating_mul(2), decided),
        };
        self.is_on ^= turned;
        turned.then(|| Share::ratio(refused, decided))
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
        lock(&self.0)[0].count(refused);
    }

    /// Counts a message on which the levels have decided; those named have refused it.
    pub(crate) fn levels(&self, refused_by: &[&str]) {
        for (alert, name) in lock(&self.0).iter_mut().zip(WATCHED).skip(1) {
            alert.count(refused_by.contains(&name));
        }
    }

    /// Tells whether there is an alert about `watched`.
    pub(crate) fn is_on(&self, watched: &str) -> bool {
        lock(&self.0).iter().zip(WATCHED).any(|(alert, name)| name == watched && alert.is_on)
    }

    /// Looks again and again, and logs what changes.
    pub(crate) async fn run(&self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            for (alert, level) in lock(&self.0).iter_mut().zip(WATCHED) {
                let Some(refused) = alert.look() else { continue };
                let Bound { alert_above: above, alert_window: window, .. } = alert.bound;
                let what = if alert.is_on {
                    "alert: a level refuses too much"
                } else {
                    "the alert is over"
                };
                tracing::warn!(level, %refused, %above, ?window, "{what}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_alert_begins_once_and_is_over_once() {
        let (alert_above, alert_window) = (Share::thousandths(200), Duration::from_secs(60));
        let mut alert = Alert::new(Bound { alert_above, alert_window, alert_least: 10 });
        let ratio = |refused, of| Some(Share::ratio(refused, of));
        for (pause, refused, of, turned, why) in [
            (0, 9, 9, None, "nine messages are too few"),
            (0, 1, 1, ratio(10, 10), "ten are enough"),
            (63, 0, 0, ratio(0, 0), "no more messages"),
            (0, 2, 10, None, "a fifth is not more than a fifth"),
            (0, 1, 1, ratio(3, 11), "it begins"),
            (0, 100, 400, None, "it has begun already"),
            (0, 0, 200, None, "it is over at half of the bound"),
            (63, 2, 19, None, "that is more than half"),
            (0, 0, 1, ratio(2, 20), "it is over"),
            (0, 0, 0, None, "it was over already"),
            (0, 9, 9, ratio(11, 29), "it begins again"),
        ] {
            advance(Duration::from_secs(pause)).await;
            (0..of).for_each(|index| alert.count(index < refused));
            assert_eq!(alert.look(), turned, "{why}");
        }
    }
}
