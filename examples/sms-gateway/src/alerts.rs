//! [`Refusals`]: what refuses how many messages of each institution, and an alert when one level refuses too
//! much.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use example_support::flags::timeout;
use example_support::lock;
use example_support::webhook::Webhook;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::args::percent;
use crate::levels::{LEVELS, Levels};

/// What refuses messages: the levels, and the bucket.
const REFUSERS: [&str; 5] = [LEVELS[0], LEVELS[1], LEVELS[2], LEVELS[3], "global"];

/// When an alert begins.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// An alert begins when a level has refused more than this share of its messages in a window, and is
    /// over when it has refused no more than half of it in a later one.
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = percent())]
    alert_above: u32,

    /// The windows, one after the other, over which refusals are counted.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = timeout)]
    alert_window: Duration,

    /// How many messages there must be in a window for an alert.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    alert_least: u64,
}

/// Counts what was decided on the messages.
pub(crate) struct Refusals {
    bound: Bound,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Of each institution, since the start, by refuser.
    total: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Of each of [`REFUSERS`], in this window.
    recent: [Recent; REFUSERS.len()],
    alerts: BTreeSet<&'static str>,
}

/// What a refuser has decided on in a window.
#[derive(Default)]
struct Recent {
    messages: u64,
    refused: u64,
    by_institution: BTreeMap<String, u64>,
}

impl Refusals {
    pub(crate) fn new(bound: Bound) -> Self {
        Self { bound, counts: Mutex::default() }
    }

    /// Counts a message, which the policies of these names have refused, or only the bucket, or nothing.
    pub(crate) fn count(&self, institution: &str, refusers: &[&str]) {
        // The policies of shares are named LEVEL-share.
        let refuses = |it: &str| refusers.iter().any(|name| name.trim_end_matches("-share") == it);
        let reaches_bucket = refusers.is_empty() || refuses("global");
        let counts = &mut *lock(&self.counts);
        for (refuser, recent) in REFUSERS.into_iter().zip(&mut counts.recent) {
            recent.messages += u64::from(refuser != "global" || reaches_bucket);
            if refuses(refuser) {
                recent.refused += 1;
                *recent.by_institution.entry(institution.to_owned()).or_default() += 1;
                let total = counts.total.entry(institution.to_owned()).or_default();
                *total.entry(refuser).or_default() += 1;
            }
        }
    }

    /// Returns the refusals since the start by institution and refuser, and what there is an alert about.
    pub(crate) fn shown(&self) -> (Value, Value) {
        let counts = lock(&self.counts);
        (json!(counts.total), json!(counts.alerts))
    }

    /// Looks at the end of each window, and says what changes: in the log, and to the webhook.
    pub(crate) async fn watch(&self, levels: &Levels, webhook: &Webhook) {
        loop {
            sleep(self.bound.alert_window).await;
            let counts = &mut *lock(&self.counts);
            // Those of institutions that were removed would never go.
            counts.total.retain(|name, _| levels.has_institution(name));
            for (level, recent) in REFUSERS.into_iter().zip(std::mem::take(&mut counts.recent)) {
                let was_on = counts.alerts.remove(level);
                let is_on = self.bound.is_on(was_on, &recent);
                if is_on {
                    counts.alerts.insert(level);
                }
                if is_on != was_on {
                    self.bound.notify(level, is_on, recent, webhook);
                }
            }
        }
    }
}

impl Bound {
    /// Tells whether there is an alert after this window. A share about the bound does not turn it on and off
    /// again.
    fn is_on(&self, is_on: bool, Recent { messages, refused, .. }: &Recent) -> bool {
        let bound = u64::from(self.alert_above) * messages;
        if is_on {
            refused * 200 > bound
        } else {
            *messages >= self.alert_least && refused * 100 > bound
        }
    }

    fn notify(&self, level: &str, is_on: bool, recent: Recent, webhook: &Webhook) {
        let Recent { messages, refused, by_institution } = recent;
        let most = by_institution.into_iter().max_by_key(|(_, refused)| *refused);
        let (institution, of_institution) = most.unzip();
        let (alert, above) = (if is_on { "begun" } else { "over" }, self.alert_above);
        tracing::warn!(
            level,
            institution,
            refused,
            of_institution,
            messages,
            above,
            window = ?self.alert_window,
            "alert {alert}: a level refuses too much"
        );
        webhook.send(&json!({
            "alert": alert,
            "level": level,
            "messages": messages,
            "refused": refused,
            "institution": institution,
            "refused_of_institution": of_institution,
            "above_percent": above,
            "window_seconds": self.alert_window.as_secs_f64(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_begins_and_ends_at_its_bounds() {
        let bound = Bound { alert_above: 20, alert_window: Duration::MAX, alert_least: 10 };
        for (was_on, refused, messages, is_on, why) in [
            (false, 9, 9, false, "nine messages are too few"),
            (false, 10, 10, true, "ten are enough"),
            (false, 2, 10, false, "a fifth is not more than a fifth"),
            (true, 2, 19, true, "that is more than half of the bound"),
            (true, 2, 20, false, "that is half"),
            (true, 0, 0, false, "no more messages"),
        ] {
            let recent = Recent { messages, refused, ..Recent::default() };
            assert_eq!(bound.is_on(was_on, &recent), is_on, "{why}");
        }
    }
}
