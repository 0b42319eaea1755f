//! How long a check takes in process, beside governor's.

use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use serde::{Deserialize, Serialize};
use tower_sliding_window::store::{Check, DenyCache, LogId, Store};
use tower_sliding_window::{Key, Limiter, MemoryStore, Policy, PolicyHandle, Quota};
use uuid::Uuid;

use crate::process::run_again;
use crate::table::{Table, median, number, ratio};
use crate::targets::Figure;

const KEYS: usize = 100_000;
const CHECKS: usize = 1_000_000;

/// How many bursts each limiter gets, in turn with the others.
const BURSTS: usize = 20;

/// Nanoseconds a check of one kind, and beside governor's, as medians of the bursts of one process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Round {
    name: String,
    /// `Limiter::check`: copies the key, reads the policy, returns the decision.
    limiter: f64,
    /// The same through a [`DenyCache`].
    cached: f64,
    /// `MemoryStore` alone, with checks that were made before.
    store: f64,
    governor: f64,
    limiter_ratio: f64,
    store_ratio: f64,
}

/// Measures each round in a new process.
pub(crate) async fn run(rounds: usize, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut all = Vec::new();
    for round in 1..=rounds {
        eprintln!("micro: round {round} of {rounds}");
        all.push(run_again::<Vec<Round>>(&["probe-micro".to_owned()]).await?);
    }
    let mut table = Table::new(
        "A check in process, in nanoseconds",
        &["", "Limiter", "ratio", "behind DenyCache", "MemoryStore alone", "ratio", "governor"],
    );
    for index in 0..all.first().map_or(0, Vec::len) {
        let of = |value: fn(&Round) -> f64| median(all.iter().map(|round| value(&round[index])));
        let (limiter, store) = (of(|round| round.limiter_ratio), of(|round| round.store_ratio));
        let name = &all[0][index].name;
        table.row([
            name.clone(),
            number(of(|round| round.limiter)),
            ratio(Some(limiter)),
            number(of(|round| round.cached)),
            number(of(|round| round.store)),
            ratio(Some(store)),
            number(of(|round| round.governor)),
        ]);
        // On a hot key, which the CPU caches hold, the copy of the key weighs more.
        let at_most = if name.contains("hot") { 2.0 } else { 1.3 };
        let figure = format!("Limiter on a MemoryStore / governor, {name}");
        figures.push(Figure::new(figure, limiter, at_most));
        figures.push(Figure::new(format!("MemoryStore alone / governor, {name}"), store, 1.3));
    }
    Ok(table)
}

/// Measures, in this process, the parts that every check has.
pub(crate) fn parts() -> Result<Table> {
    let order = vec![0; CHECKS];
    let (mutex, shared, clock) = (Mutex::new(0_u64), Arc::new(0_u64), DefaultClock::default());
    let policy = PolicyHandle::new(Quota::per_minute(5));
    let began = Instant::now();
    let mut table = Table::new("What a check is made of, in nanoseconds", &["", "ns"]);
    let mut row = |name: &str, part: &dyn Fn()| {
        let timed = (0..5).map(|_| {
            each(&order, true, |_| {
                part();
                true
            })
        });
        let timed = timed.collect::<Result<Vec<f64>>>()?;
        table.row([name.to_owned(), number(median(timed))]);
        Ok::<_, anyhow::Error>(())
    };
    row("microseconds by std's clock", &|| _ = black_box(began.elapsed().as_micros()))?;
    row("an instant of governor's clock", &|| _ = black_box(clock.now()))?;
    row("an uncontended lock", &|| {
        *black_box(&mutex).lock().unwrap_or_else(|it| it.into_inner()) += 1
    })?;
    row("an Arc cloned and dropped", &|| drop(black_box(shared.clone())))?;
    row("a key of 12 bytes copied and dropped", &|| {
        drop(black_box(Key::from(black_box("user-0000000"))))
    })?;
    row("a policy read from its handle, and dropped", &|| drop(black_box(policy.get())))?;
    row("200 bytes allocated and freed", &|| {
        drop(black_box(Vec::<u8>::with_capacity(black_box(200))))
    })?;
    row("a UUID", &|| _ = black_box(Uuid::new_v4()))?;
    Ok(table)
}

/// Measures one round in this process.
pub(crate) fn measure() -> Result<Vec<Round>> {
    let names: Vec<String> = (0..KEYS).map(|key| format!("user-{key:07}")).collect();
    let hot = &names[..1];
    let five = Quota::new(5, Duration::from_secs(60));
    let governor_five = GovernorQuota::per_minute(NonZeroU32::MIN.saturating_add(4));
    // Far more entries leave each millisecond than come.
    let ample = Quota::new(1_000_000, Duration::from_millis(1));
    let governor_ample = GovernorQuota::with_period(Duration::from_nanos(1))
        .map(|quota| quota.allow_burst(NonZeroU32::MAX))
        .unwrap_or(governor_five);

    let each: Vec<usize> = (0..5).flat_map(|_| shuffled(KEYS)).collect();
    let random: Vec<usize> = (0..CHECKS / KEYS).flat_map(|_| shuffled(KEYS)).collect();
    let always_hot = vec![0; CHECKS];

    let wide = Subjects::new(five, governor_five, &names);
    let one = Subjects::new(five, governor_five, hot);
    let busy = Subjects::new(ample, governor_ample, hot);
    one.time("fills the window", &always_hot[..5], true)?;
    Ok(vec![
        wide.time("100,000 keys, 5 each, all admitted", &each, true)?,
        wide.time("100,000 random keys, denied", &random, false)?,
        one.time("one hot key, denied", &always_hot, false)?,
        busy.time("one hot key, admitted", &always_hot, true)?,
    ])
}

/// The limiters to compare, with the same keys.
struct Subjects<'a> {
    limiter: Limiter,
    cached: Limiter,
    store: MemoryStore,
    governor: DefaultKeyedRateLimiter<String>,
    names: &'a [String],
    checks: Vec<Check>,
}

impl<'a> Subjects<'a> {
    fn new(quota: Quota, governor: GovernorQuota, names: &'a [String]) -> Self {
        let policy = Arc::new(Policy::from(quota));
        let check = |name: &String| Check::new([LogId::new(policy.clone(), name)]);
        Self {
            limiter: Limiter::new(quota, MemoryStore::new()),
            cached: Limiter::new(quota, DenyCache::new(MemoryStore::new()).capacity(2 * KEYS)),
            store: MemoryStore::new(),
            governor: RateLimiter::keyed(governor),
            names,
            checks: names.iter().map(check).collect(),
        }
    }

    /// Times the same checks for each, and ensures that the decisions are as expected.
    fn time(&self, name: &str, order: &[usize], admitted: bool) -> Result<Round> {
        let limiter = |limiter: &Limiter, key: usize| {
            now(limiter.check(self.names[key].as_str()))
                .is_ok_and(|decision| decision.is_admitted())
        };
        let store = |key: usize| {
            now(self.store.admit(&self.checks[key])).is_ok_and(|outcome| outcome.admitted)
        };
        let governor = |key: usize| self.governor.check_key(&self.names[key]).is_ok();
        let mut seen = [const { Vec::new() }; 4];
        for burst in order.chunks(order.len().div_ceil(BURSTS)) {
            seen[0].push(each(burst, admitted, governor)?);
            seen[1].push(each(burst, admitted, |key| limiter(&self.limiter, key))?);
            seen[2].push(each(burst, admitted, store)?);
            seen[3].push(each(burst, admitted, |key| limiter(&self.cached, key))?);
        }
        let of_governor = |seen: &[f64], governor: &[f64]| {
            median(seen.iter().zip(governor).map(|(seen, governor)| seen / governor))
        };
        Ok(Round {
            name: name.to_owned(),
            limiter_ratio: of_governor(&seen[1], &seen[0]),
            store_ratio: of_governor(&seen[2], &seen[0]),
            governor: median(seen[0].iter().copied()),
            limiter: median(seen[1].iter().copied()),
            store: median(seen[2].iter().copied()),
            cached: median(seen[3].iter().copied()),
        })
    }
}

fn each(order: &[usize], expected: bool, check: impl Fn(usize) -> bool) -> Result<f64> {
    let start = Instant::now();
    let admitted = order.iter().filter(|key| black_box(check(**key))).count();
    let elapsed = start.elapsed();
    let wanted = if expected { order.len() } else { 0 };
    ensure!(admitted.abs_diff(wanted) * 1000 <= order.len(), "{admitted} of {wanted} admitted");
    Ok(elapsed.as_nanos() as f64 / order.len() as f64)
}

/// Returns all numbers below `count`, in an order that no cache can predict.
pub(crate) fn shuffled(count: usize) -> Vec<usize> {
    use std::hash::{BuildHasher, RandomState};
    let hasher = RandomState::new();
    let mut numbers: Vec<usize> = (0..count).collect();
    numbers.sort_by_cached_key(|number| hasher.hash_one(number));
    numbers
}

/// Returns the output of a future that is ready at once, so that no runtime is measured.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a store in memory is ready at once"),
    }
}
