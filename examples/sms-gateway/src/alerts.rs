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
use crate::levels::LEVELS;

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
    refused: BTreeMap<String, u64>,
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
        let Counts { total, recent, .. } = &mut *lock(&self.counts);
        for (refuser, recent) in REFUSERS.into_iter().zip(recent) {
            recent.messages += u64::from(refuser != "global" || reaches_bucket);
            if refuses(refuser) {
                *recent.refused.entry(institution.to_owned()).or_default() += 1;
                let total = total.entry(institution.to_owned()).or_default();
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
    pub(crate) async fn watch(&self, webhook: &Webhook) {
        loop {
            sleep(self.bound.alert_window).await;
            let Counts { recent, alerts, .. } = &mut *lock(&self.counts);
            for (level, recent) in REFUSERS.into_iter().zip(std::mem::take(recent)) {
                let was_on = alerts.remove(level);
                if self.bound.look(level, was_on, recent, webhook) {
                    alerts.insert(level);
                }
            }
        }
    }
}

impl Bound {
    /// Returns whether there is an alert about a level after a window, and says so if that is new. A share
    /// about the bound does not turn an alert on and off again.
    fn look(&self, level: &str, was_on: bool, recent: Recent, webhook: &Webhook) -> bool {
        let Recent { messages, refused: by_institution } = recent;
        let (refused, above) = (by_institution.values().sum::<u64>(), self.alert_above);
        let bound = u64::from(above) * messages;
        let is_on = match was_on {
            true => refused * 200 > bound,
            false => messages >= self.alert_least && refused * 100 > bound,
        };
        if is_on == was_on {
            return is_on;
        }
        let most = by_institution.into_iter().max_by_key(|(_, refused)| *refused);
        let (institution, of_institution) = most.unzip();
        let alert = if is_on { "begun" } else { "over" };
        let what = "a level refuses too much";
        tracing::warn!(
            level,
            institution,
            of_institution,
            refused,
            messages,
            above,
            "alert {alert}: {what}"
        );
        webhook.send(&json!({
            "alert": alert,
            "level": level,
            "messages": messages,
            "refused": refused,
            "institution": institution,
            "refused_of_institution": of_institution,
            "above_percent": above,
        }));
        is_on
    }
}
