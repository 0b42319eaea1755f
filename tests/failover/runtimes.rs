//! Runtimes that nobody drives: the tasks of a store are on them.

use std::thread;
use std::time::{Duration, Instant};

use test_support::Redis;
use tokio::runtime::{Builder, Runtime};
use tower_sliding_window::{DecidedBy, Limiter, RedisStore};

use crate::{limiter, store, user};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until Redis decides, with a check in each 20 ms.
fn redis_decides(runtime: &Runtime, limiter: &Limiter) {
    let begin = Instant::now();
    while runtime.block_on(limiter.check("alice")).unwrap().decided_by() != DecidedBy::Store {
        assert!(begin.elapsed() < Duration::from_secs(20), "Redis is not used");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The first poll of a check in an outage decides it, and the runtime has no other time.
#[test]
fn program_of_blocking_checks_finds_redis_again() {
    let (program, other) = (runtime(), runtime());
    let mut redis = other.block_on(Redis::start());
    let ours = limiter(user(100_000), &program.block_on(store(redis.url())));
    redis_decides(&program, &ours);
    redis.kill();
    thread::sleep(Duration::from_millis(100));
    let decision = program.block_on(ours.check("alice")).unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::LocalLog);
    redis.start_again();
    other.block_on(redis.ready());
    redis_decides(&program, &ours);
}

#[test]
fn store_that_was_made_in_a_runtime_at_rest_connects() {
    let (at_rest, driven) = (runtime(), runtime());
    let redis = driven.block_on(Redis::start());
    let lazy = at_rest.block_on(async { RedisStore::connect_lazy(redis.url()).unwrap() });
    redis_decides(&driven, &limiter(user(1_000), &lazy));
    drop(at_rest);
}
