//! Runtimes that nobody drives: the tasks of a store are on them.

use std::cell::RefCell;

use crate::*;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn of_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Waits until Redis decides, with a check in each 20 ms.
fn redis_decides(runtime: &Runtime, limiter: &Limiter) {
    let begin = Instant::now();
    while runtime.block_on(decided_by(limiter, "alice")) != REDIS {
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
    assert_eq!(program.block_on(decided_by(&ours, "alice")), HERE);
    redis.start_again();
    other.block_on(redis.ready());
    redis_decides(&program, &ours);
}

fn jobs() -> Policy {
    Policy::new("jobs").quota(Quota::new(9, Duration::from_secs(300))).in_flight()
}

/// The runtime of a permit has ended. Another one uses the store, and waits for a reply, while the permit is dropped: on a
/// thread of none, on one of the first runtime, such as `spawn_blocking` leaves behind, or as a thread ends, which has no
/// place for a runtime then.
#[test]
fn permit_of_an_ended_runtime_is_dropped_without_a_panic() {
    thread_local!(static PERMIT: RefCell<Option<Permit>> = const { RefCell::new(None) });
    for how in ["outside", "inside", "as the thread ends"] {
        let (one, other) = (of_threads(), of_threads());
        let (_redis, Far { proxy, .. }, limiter) = other.block_on(far(jobs()));
        let permit = one.block_on(limiter.acquire("alice", Duration::ZERO)).unwrap();
        let handle = one.handle().clone();
        drop(one);
        other.block_on(async {
            // So that the script is known.
            limiter.acquire("bob", Duration::ZERO).await.unwrap().release().await;
            proxy.set(Fault::Delay(Duration::from_millis(200)));
            drop(limiter.acquire("bob", Duration::ZERO).await.unwrap());
        });
        let dropped = thread::spawn(move || {
            let _entered = (how != "outside").then(|| handle.enter());
            match how {
                "as the thread ends" => PERMIT.set(Some(permit)),
                _ => drop(permit),
            }
        });
        assert!(dropped.join().is_ok(), "a permit panics when it is dropped {how}");
    }
}

/// A caller that leaves on a thread without a runtime.
#[test]
fn caller_that_leaves_on_another_thread_leaves_no_place() {
    let runtime = of_threads();
    let (_redis, Far { proxy, .. }, limiter) = runtime.block_on(far(jobs()));
    let acquires = limiter.clone();
    let mut acquire = task::spawn(async move { acquires.acquire("alice", Duration::ZERO).await });
    runtime.block_on(async {
        limiter.acquire("bob", Duration::ZERO).await.unwrap().release().await;
        proxy.set(Fault::Delay(Duration::from_millis(200)));
        assert_pending!(acquire.poll());
        // So that it is sent.
        sleep(Duration::from_millis(100)).await;
    });
    thread::spawn(move || drop(acquire)).join().unwrap();
    let is_free = async || left(&limiter, "alice").await == 9;
    runtime.block_on(eventually("the place is free before the end of its lease", is_free));
}
