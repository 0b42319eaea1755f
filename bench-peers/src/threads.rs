//! How many checks a second several threads make in process, beside governor's.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use tower_sliding_window::store::{Check, LogId, Store};
use tower_sliding_window::{Limiter, MemoryStore, Penalty, Policy, Quota};

use crate::micro::{now, shuffled};
use crate::table::{Table, median, number, ratio};

const THREADS: [usize; 4] = [1, 2, 4, 8];
const KEYS: usize = 100_000;
/// How long a cell is measured in one round.
const LENGTH: Duration = Duration::from_millis(500);
/// How many checks a thread makes before it looks whether the time is over.
const AT_ONCE: usize = 64;

/// The same checks for each limiter.
struct Workload {
    name: &'static str,
    keys: usize,
    /// Whether all checks are admitted, or all are denied.
    admitted: bool,
}

const WORKLOADS: [Workload; 4] = [
    Workload { name: "one hot key, denied", keys: 1, admitted: false },
    Workload { name: "one hot key, admitted", keys: 1, admitted: true },
    Workload { name: "100,000 random keys, denied", keys: KEYS, admitted: false },
    Workload { name: "100,000 random keys, admitted", keys: KEYS, admitted: true },
];

/// Measures all cells in turn, round after round, in this process.
pub(crate) fn run(rounds: usize) -> Result<Table> {
    let names: Vec<String> = (0..KEYS).map(|key| format!("user-{key:07}")).collect();
    let mut rows = Vec::new();
    for workload in &WORKLOADS {
        eprintln!("threads: {}", workload.name);
        let names = &names[..workload.keys];
        let subjects = Subjects::new(workload, names)?;
        let mut seen = [const { [const { Vec::new() }; THREADS.len()] }; SUBJECTS.len()];
        for _ in 0..rounds {
            for (column, threads) in THREADS.into_iter().enumerate() {
                for (subject, seen) in seen.iter_mut().enumerate() {
                    seen[column].push(subjects.time(subject, threads, workload)?);
                }
            }
        }
        for (subject, seen) in SUBJECTS.iter().zip(seen) {
            rows.push((format!("{}: {subject}", workload.name), seen.map(median)));
        }
    }
    let mut table = Table::new(
        "Threads: million checks a second in process, and of each thread beside one alone",
        &["", "1 thread", "2 threads", "each", "4 threads", "each", "8 threads", "each"],
    );
    for (name, seen) in rows {
        let mut cells = vec![name, number(seen[0])];
        for (threads, checks) in THREADS.into_iter().zip(seen).skip(1) {
            cells.push(number(checks));
            cells.push(ratio(Some(checks / threads as f64 / seen[0])));
        }
        table.row(cells);
    }
    Ok(table)
}

const SUBJECTS: [&str; 4] = ["MemoryStore", "Limiter", "Limiter with a penalty", "governor"];

/// The limiters to compare, with the same keys.
struct Subjects<'a> {
    names: &'a [String],
    store: MemoryStore,
    checks: Vec<Check>,
    limiter: Limiter,
    penalty: Limiter,
    governor: DefaultKeyedRateLimiter<String>,
}

impl<'a> Subjects<'a> {
    fn new(workload: &Workload, names: &'a [String]) -> Result<Self> {
        let (quota, governor) = if workload.admitted {
            // Far more entries leave each millisecond than come.
            let nanosecond = GovernorQuota::with_period(Duration::from_nanos(1));
            let governor = nanosecond.context("no period")?.allow_burst(NonZeroU32::MAX);
            (Quota::new(1_000_000, Duration::from_millis(1)), governor)
        } else {
            let hour = GovernorQuota::with_period(Duration::from_secs(3600));
            (Quota::new(1, Duration::from_secs(3600)), hour.context("no period")?)
        };
        let policy = Arc::new(Policy::from(quota));
        let check = |name: &String| Check::new([LogId::new(policy.clone(), name)]);
        let penalty: Penalty = "3/10m:1h".parse()?;
        let subjects = Self {
            names,
            store: MemoryStore::new(),
            checks: names.iter().map(check).collect(),
            limiter: Limiter::new(quota, MemoryStore::new()),
            penalty: Limiter::new(Policy::from(quota).penalty(penalty), MemoryStore::new()),
            governor: RateLimiter::keyed(governor),
        };
        // The first check of each key is admitted. With a penalty, three denials ban the key.
        for key in 0..names.len() {
            for _ in 0..4 {
                for subject in 0..SUBJECTS.len() {
                    subjects.check(subject, key);
                }
            }
        }
        Ok(subjects)
    }

    /// Returns whether a check of a key is admitted.
    fn check(&self, subject: usize, key: usize) -> bool {
        let name = &self.names[key];
        let limiter = |limiter: &Limiter| {
            now(limiter.check(name.as_str())).is_ok_and(|decision| decision.is_admitted())
        };
        match subject {
            0 => now(self.store.admit(&self.checks[key])).is_ok_and(|outcome| outcome.admitted),
            1 => limiter(&self.limiter),
            2 => limiter(&self.penalty),
            _ => self.governor.check_key(name).is_ok(),
        }
    }

    /// Returns how many million checks a second so many threads make together.
    fn time(&self, subject: usize, threads: usize, workload: &Workload) -> Result<f64> {
        let (barrier, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
        let work = || {
            let order = shuffled(self.names.len());
            let mut keys = order.iter().copied().cycle();
            let (mut checks, mut admitted) = (0_u64, 0_u64);
            barrier.wait();
            while !over.load(Ordering::Relaxed) {
                for key in keys.by_ref().take(AT_ONCE) {
                    admitted += u64::from(black_box(self.check(subject, key)));
                }
                checks += AT_ONCE as u64;
            }
            (checks, admitted)
        };
        let work = &work;
        let (counts, elapsed) = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            barrier.wait();
            let start = Instant::now();
            thread::sleep(LENGTH);
            over.store(true, Ordering::Relaxed);
            let elapsed = start.elapsed();
            let counts = workers.into_iter().map(|worker| worker.join().unwrap_or_default());
            (counts.collect::<Vec<_>>(), elapsed)
        });
        let checks: u64 = counts.iter().map(|(checks, _)| checks).sum();
        let admitted: u64 = counts.iter().map(|(_, admitted)| admitted).sum();
        let wanted = if workload.admitted { checks } else { 0 };
        ensure!(admitted.abs_diff(wanted) * 1000 <= checks, "{admitted} of {wanted} admitted");
        Ok(checks as f64 / elapsed.as_secs_f64() / 1e6)
    }
}
