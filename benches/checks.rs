//! Compares a check in process with governor's.
//!
//! Measure with `cargo bench -p bench-peers`. A plain `cargo bench` enables tokio's `test-util`, which the
//! crate's tests need. With it each read of the clock checks whether time is paused. So a plain
//! `cargo bench` can compare commits, but not this crate with governor.

use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use governor::{Quota as GovernorQuota, RateLimiter};
use tower_sliding_window::store::{Check, DenyCache, LogId, Store};
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota};

const KEYS: usize = 100_000;
const LIMIT: u32 = 5;

fn five_a_minute() -> Quota {
    Quota::new(LIMIT, Duration::from_secs(60))
}

fn governor_five_a_minute() -> GovernorQuota {
    GovernorQuota::per_minute(NonZeroU32::new(LIMIT).expect("not zero"))
}

/// Returns the output of a future that is ready at once, so that no runtime is measured.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the memory store is ready at once"),
    }
}

fn admitted(limiter: &Limiter, key: &str) -> bool {
    now(limiter.check(key)).is_ok_and(|decision| decision.is_admitted())
}

/// Returns keys in a random order, so that the CPU can't prefetch them.
fn keys(count: usize) -> Vec<String> {
    use std::hash::{BuildHasher, RandomState};
    let hasher = RandomState::new();
    let mut keys: Vec<String> = (0..count).map(|key| format!("user-{key:07}")).collect();
    keys.sort_by_cached_key(|key| hasher.hash_one(key));
    keys
}

/// Measures denials: all logs are full, as in a flood of bots.
fn denied(criterion: &mut Criterion) {
    for (name, count) in [("denied/one hot key", 1), ("denied/100k random keys", KEYS)] {
        // The checks have another order than the admissions.
        let (keys, shuffled) = (keys(count), keys(count));
        let mut group = criterion.benchmark_group(name);
        let mut next = {
            let mut order = shuffled.iter().cycle();
            move || order.next().expect("a key").as_str()
        };

        let limiter = Limiter::new(five_a_minute(), MemoryStore::new());
        for _ in 0..LIMIT {
            keys.iter().for_each(|key| assert!(admitted(&limiter, key)));
        }
        group.bench_function("Limiter", |bencher| bencher.iter(|| admitted(&limiter, next())));

        let cache = DenyCache::new(MemoryStore::new()).capacity(2 * KEYS);
        let cached = Limiter::new(five_a_minute(), cache);
        for _ in 0..LIMIT {
            keys.iter().for_each(|key| assert!(admitted(&cached, key)));
        }
        group.bench_function("Limiter behind DenyCache", |bencher| {
            bencher.iter(|| admitted(&cached, next()));
        });

        let store = MemoryStore::new();
        let policy = Arc::new(Policy::from(five_a_minute()));
        let check = |key: &String| Check::new([LogId::new(policy.clone(), key)]);
        let checks: Vec<Check> = keys.iter().map(check).collect();
        let admit = |check| now(store.admit(check)).is_ok_and(|outcome| outcome.admitted);
        for _ in 0..LIMIT {
            checks.iter().for_each(|check| assert!(admit(check)));
        }
        let again: Vec<Check> = shuffled.iter().map(check).collect();
        let mut order = again.iter().cycle();
        group.bench_function("MemoryStore alone", |bencher| {
            bencher.iter(|| admit(order.next().expect("a check")));
        });

        let governor = RateLimiter::keyed(governor_five_a_minute());
        for _ in 0..LIMIT {
            keys.iter().for_each(|key| assert!(governor.check_key(key).is_ok()));
        }
        let mut order = shuffled.iter().cycle();
        group.bench_function("governor", |bencher| {
            bencher.iter(|| governor.check_key(order.next().expect("a key")).is_ok());
        });
        group.finish();
    }
}

/// Measures five admissions of each key in an empty store, as in a crowd of honest users.
fn all_admitted(criterion: &mut Criterion) {
    let keys = keys(KEYS);
    let order = || keys.iter().cycle().take(KEYS * LIMIT as usize);
    let mut group = criterion.benchmark_group("admitted/100k keys, 5 each");
    group.sample_size(10).throughput(Throughput::Elements(u64::from(LIMIT) * KEYS as u64));
    group.bench_function("Limiter", |bencher| {
        let empty = || Limiter::new(five_a_minute(), MemoryStore::new());
        let fill = |limiter: Limiter| {
            order().for_each(|key| assert!(admitted(&limiter, black_box(key))));
            limiter
        };
        bencher.iter_batched(empty, fill, BatchSize::PerIteration);
    });
    group.bench_function("governor", |bencher| {
        let empty = || RateLimiter::keyed(governor_five_a_minute());
        bencher.iter_batched(
            empty,
            |governor| {
                order().for_each(|key| assert!(governor.check_key(black_box(key)).is_ok()));
                governor
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Measures admissions of one key that is never full: each check drops an entry and adds one.
fn hot_admitted(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admitted/one hot key");
    let limiter = Limiter::new(Quota::new(1_000_000, Duration::from_millis(1)), MemoryStore::new());
    group.bench_function("Limiter", |bencher| {
        bencher.iter(|| assert!(admitted(&limiter, black_box("hot"))));
    });
    let quota = GovernorQuota::with_period(Duration::from_nanos(1)).expect("not zero");
    let governor = RateLimiter::keyed(quota.allow_burst(NonZeroU32::MAX));
    let hot = "hot".to_owned();
    group.bench_function("governor", |bencher| {
        bencher.iter(|| assert!(governor.check_key(black_box(&hot)).is_ok()));
    });
    group.finish();
}

criterion_group!(benches, denied, all_admitted, hot_admitted);
criterion_main!(benches);
