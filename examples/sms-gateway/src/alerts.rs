//! [`Refusals`]: what refuses how many messages of each institution, and an alert when one level refuses too
//! much.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use example_support::flags::timeout;
use example_support::lock;
use example_support::webhook::Webhook;
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

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
    /// What there is an alert about, and its id.
    alerts: BTreeMap<&'static str, Uuid>,
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
        (json!(counts.total), counts.alerts.keys().copied().collect())
    }

    /// Looks at the end of each window, and says what changes: in the log, and to the webhook.
    pub(crate) async fn watch(&self, webhook: &Webhook) {
        loop {
            sleep(self.bound.alert_window).await;
            self.look(webhook, false);
        }
    }

    /// Looks at a window. At the end of the server all alerts end, for it would not say that they are over.
    pub(crate) fn look(&self, webhook: &Webhook, is_end: bool) {
        let (Counts { recent, alerts, .. }, above) =
            (&mut *lock(&self.counts), self.bound.alert_above);
        for (level, Recent { messages, refused }) in REFUSERS.into_iter().zip(take(recent)) {
            let (before, sum) = (alerts.remove(level), refused.values().sum::<u64>());
            let bound = u64::from(above) * messages;
            // A share about the bound does not turn it on and off again.
            let is_on = match before {
                _ if is_end => false,
                Some(_) => sum * 200 > bound,
                None => messages >= self.bound.alert_least && sum * 100 > bound,
            };
            let id = before.unwrap_or_else(Uuid::new_v4);
            if is_on {
                alerts.insert(level, id);
            }
            if is_on == before.is_some() {
                continue;
            }
            let alert = if is_on { "begun" } else { "over" };
            let most = refused.into_iter().max_by_key(|(_, refused)| *refused);
            let (institution, of_institution) = most.unzip();
            let details = json!({
                "alert": alert,
                "id": id,
                "level": level,
                "messages": messages,
                "refused": sum,
                "institution": institution,
                "refused_of_institution": of_institution,
                "above_percent": above,
            });
            tracing::warn!(%details, "alert {alert}: a level refuses too much");
            webhook.send(details);
        }
    }
}
