//! [`Alerts`]: says once that a level refuses too much, because of which institution, and once that it
//! no longer does.

use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::name::Name;
use crate::refusals::{Decided, Recent, Refusals, Refuser};
use crate::share::Share;
use crate::tally::window;
use example_support::lock;
use example_support::webhook::Webhook;

/// How often the shares are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

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

/// Watches the share that one refuser refuses of the messages that it decides on.
struct Alert {
    bound: Bound,
    is_on: bool,
    /// The institution of most refusals when the alert began.
    cause: Option<Name>,
}

impl Alert {
    /// Looks at the share, and returns whether the alert has just been turned on or off.
    ///
    /// A share about the bound does not turn the alert on and off again: once on, it is over when
    /// the share is at most half of the bound.
    fn look(&mut self, Decided { messages, refused }: Decided) -> bool {
        let Bound { alert_above: above, alert_least: least, .. } = self.bound;
        let turned = match self.is_on {
            false => messages >= least && above.is_below(refused, messages),
            true => !above.is_below(refused.saturating_mul(2), messages),
        };
        self.is_on ^= turned;
        turned
    }
}

/// An alert for each of [`Refuser::ALL`].
pub(crate) struct Alerts(Mutex<[Alert; Refuser::ALL.len()]>);

/// An alert as the webhook gets it.
#[derive(Serialize)]
struct Notice<'a> {
    /// `begun` or `over`.
    alert: &'a str,
    /// What refuses: a level, `global` or `hold`.
    level: &'a str,
    /// The institution of most refusals when the alert began.
    institution: Option<&'a str>,
    /// The share of all messages that is refused, and of those of the institution.
    refused: String,
    refused_of_institution: Option<String>,
    above: String,
    window_seconds: f64,
}

impl Alerts {
    pub(crate) fn new(bound: Bound) -> Self {
        Self(Mutex::new(Refuser::ALL.map(|_| Alert { bound, is_on: false, cause: None })))
    }

    /// Tells whether there is an alert about a refuser.
    pub(crate) fn is_on(&self, refuser: Refuser) -> bool {
        lock(&self.0).iter().zip(Refuser::ALL).any(|(alert, it)| it == refuser && alert.is_on)
    }

    /// Looks again and again, and says what changes: in the log, and to the webhook.
    pub(crate) async fn run(&self, refusals: &Refusals, webhook: &Webhook) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let recent = refusals.recently().into_iter().zip(Refuser::ALL);
            for (alert, (recent, refuser)) in lock(&self.0).iter_mut().zip(recent) {
                if alert.look(recent.all) {
                    notify(alert, refuser, recent, webhook);
                }
            }
        }
    }
}

fn notify(alert: &mut Alert, refuser: Refuser, recent: Recent, webhook: &Webhook) {
    let Recent { all, most } = recent;
    let share = |of: Decided| Share::ratio(of.refused, of.messages);
    let mut of_institution = None;
    if alert.is_on {
        of_institution = most.as_ref().map(|(_, own)| share(*own));
        alert.cause = most.map(|(name, _)| name);
    }
    let Bound { alert_above: above, alert_window: window, .. } = alert.bound;
    let institution = alert.cause.as_ref().map(Name::as_str);
    let (level, refused) = (refuser.name(), share(all));
    if alert.is_on {
        let of_institution = of_institution.map(tracing::field::display);
        tracing::warn!(
            level,
            institution,
            %refused,
            of_institution,
            %above,
            ?window,
            "alert: a level refuses too much"
        );
    } else {
        tracing::warn!(level, institution, %refused, %above, ?window, "the alert is over");
    }
    webhook.send(&Notice {
        alert: if alert.is_on { "begun" } else { "over" },
        level,
        institution,
        refused: refused.to_string(),
        refused_of_institution: of_institution.map(|share| share.to_string()),
        above: above.to_string(),
        window_seconds: window.as_secs_f64(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_begins_once_and_is_over_once() {
        let (alert_above, alert_window) = (Share::thousandths(200), Duration::from_secs(60));
        let bound = Bound { alert_above, alert_window, alert_least: 10 };
        let mut alert = Alert { bound, is_on: false, cause: None };
        for (refused, messages, turned, why) in [
            (9, 9, false, "nine messages are too few"),
            (10, 10, true, "ten are enough"),
            (0, 0, true, "no more messages"),
            (2, 10, false, "a fifth is not more than a fifth"),
            (3, 11, true, "it begins"),
            (103, 411, false, "it has begun already"),
            (2, 19, false, "that is more than half"),
            (2, 20, true, "it is over at half of the bound"),
            (0, 0, false, "it was over already"),
            (11, 29, true, "it begins again"),
        ] {
            assert_eq!(alert.look(Decided { messages, refused }), turned, "{why}");
        }
    }
}
