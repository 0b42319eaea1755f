//! [`Sampler`]: one sample of the server twice a second, for all viewers of the live page.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tower_sliding_window::Offender;

use super::facts::{Facts, Source};
use super::meter::{Class, Meter, Refusals, no_times};
use crate::policies::{Fleet, USER};
use example_support::lock;

/// The time between two samples.
const EVERY: Duration = Duration::from_millis(500);
/// The time between two reads of the store and the stock.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The samples that a new viewer gets: two minutes.
const KEPT: usize = 240;
/// The samples whose times make the percentiles: ten seconds.
const RECENT: usize = 20;
/// The users denied most that are shown.
const OFFENDERS: usize = 10;

/// Takes samples and publishes them. What costs the store something is read only while there are
/// viewers.
pub(crate) struct Sampler {
    meter: Meter,
    fleet: Arc<Fleet>,
    source: Source,
    started: Instant,
    facts: Mutex<Facts>,
    history: Mutex<VecDeque<Point>>,
    samples: watch::Sender<Arc<str>>,
}

/// The counts at one time.
#[derive(Clone, Copy)]
struct Point {
    at: Duration,
    classes: [u64; Class::ALL.len()],
}

impl Point {
    fn shown(&self) -> Value {
        json!({ "at_ms": self.at.as_millis() as u64, "counts": self.classes })
    }
}

/// Since when a policy has its candidates, and the counts then.
struct Trial {
    candidates: Value,
    begun: Instant,
    counts: Refusals,
}

impl Sampler {
    pub(crate) fn new(meter: Meter, fleet: Arc<Fleet>, source: Source) -> Self {
        let (started, facts) = (Instant::now(), Mutex::new(Facts::unread()));
        let (history, samples) = (Mutex::default(), watch::Sender::new("".into()));
        Self { meter, fleet, source, started, facts, history, samples }
    }

    /// Begins to view the samples. The next one comes soon.
    pub(super) fn view(&self) -> watch::Receiver<Arc<str>> {
        self.samples.subscribe()
    }

    /// Returns the counts of the last two minutes.
    pub(super) fn history(&self) -> Value {
        lock(&self.history).iter().map(Point::shown).collect()
    }

    /// Takes samples for ever.
    pub(crate) async fn run(&self) {
        tokio::join!(self.sample(), self.read());
    }

    async fn sample(&self) {
        let (mut recent, mut trials) = (VecDeque::new(), BTreeMap::new());
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let point = Point { at: self.started.elapsed(), classes: self.meter.classes() };
            push(&mut lock(&self.history), point, KEPT);
            if let Some(times) = self.meter.take_times() {
                push(&mut recent, times, RECENT);
            }
            let policies = self.policies(&mut trials);
            if self.samples.receiver_count() > 0 {
                let sample = self.shown(&point, &recent, policies);
                self.samples.send_replace(sample.to_string().into());
            }
        }
    }

    /// Reads the store and the stock apart from the samples, which must not wait for a slow store.
    async fn read(&self) {
        let mut ticks = interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.samples.receiver_count() > 0 {
                let facts = Facts::read(&self.source, &self.offenders()).await;
                *lock(&self.facts) = facts;
            }
        }
    }

    fn shown(&self, point: &Point, recent: &VecDeque<Histogram<u64>>, policies: Value) -> Value {
        let Facts { store, stock, banned } = lock(&self.facts).clone();
        let mut sample = point.shown();
        let [by_store, by_local_log, by_failure_policy] = self.meter.decided_by();
        sample["latency"] = latency(recent);
        sample["stock"] = stock.into();
        sample["opens_in_ms"] =
            self.source.shop.opening.opens_in().map(|wait| wait.as_millis() as u64).into();
        sample["store"] = store;
        sample["decided_by"] =
            json!({ "store": by_store, "local": by_local_log, "policy": by_failure_policy });
        sample["policies"] = policies;
        sample["offenders"] = self.offenders().iter().map(|it| shown(it, &banned)).collect();
        sample
    }

    /// Returns the users that are denied most.
    fn offenders(&self) -> Vec<Offender> {
        let mut offenders = self.meter.offenders().of(USER);
        offenders.truncate(OFFENDERS);
        offenders
    }

    /// Shows the policies, and beside what they refuse what their candidates would refuse.
    fn policies(&self, trials: &mut BTreeMap<String, Trial>) -> Value {
        let mut shown = self.fleet.shown();
        for policy in shown["policies"].as_array_mut().into_iter().flatten() {
            let name = policy["name"].as_str().unwrap_or_default().to_owned();
            let counts = self.meter.refusals(&name);
            let new = || Trial {
                candidates: policy["candidates"].clone(),
                begun: Instant::now(),
                counts,
            };
            let trial = trials.entry(name).or_insert_with(new);
            if trial.candidates != policy["candidates"] {
                *trial = new();
            }
            policy["trial"] = json!({
                "seconds": trial.begun.elapsed().as_secs(),
                "refused": counts.refused - trial.counts.refused,
                "would_refuse": counts.would_refuse - trial.counts.would_refuse,
            });
        }
        shown
    }
}

/// Shows a user that is denied often, and how long a ban still lasts.
fn shown(offender: &Offender, banned: &HashMap<Vec<u8>, u64>) -> Value {
    let user = offender.key().as_bytes();
    json!({
        "user": String::from_utf8_lossy(user),
        "denials": offender.denials(),
        "banned_seconds": banned.get(user),
    })
}

/// Keeps the last `most` values.
fn push<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

/// Shows the percentiles of the recent times in milliseconds, or null without a request.
fn latency(recent: &VecDeque<Histogram<u64>>) -> Value {
    let Some(mut all) = no_times() else { return Value::Null };
    for times in recent {
        // The bounds of all of them are the same.
        let _ = all.add(times);
    }
    if all.is_empty() {
        return Value::Null;
    }
    let at = |percentile| all.value_at_percentile(percentile) as f64 / 1e3;
    json!({ "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "max": at(100.0) })
}
