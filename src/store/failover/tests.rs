mod faulty;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;

const LIMIT: u32 = 5;

fn log(name: &str, key: u64) -> LogId {
    let policy = Policy::new(name).quota(Quota::per_hour(LIMIT));
    LogId::new(Arc::new(policy), key.to_string())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn failover() -> (Failover<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    (Failover::new(store.clone(), MemoryStore::new(), Outage::new()), store)
}

#[test]
fn last_place_is_taken_once() {
    const THREADS: u32 = 4;
    let (runtime, (failover, store)) = (runtime(), failover());
    let admit = |check: Check| runtime.block_on(failover.admit(&check)).unwrap().admitted;
    failover.0.outage.record_failure();
    let together = Barrier::new(THREADS as usize);
    for round in 0..5_000 {
        let log = log("user", round);
        let check = || Check::new([log.clone()]);
        for _ in 1..LIMIT {
            assert!(admit(check()));
        }
        immediate(store.reset(std::slice::from_ref(&log))).unwrap();
        let one = || {
            together.wait();
            admit(check())
        };
        let passed = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).filter(|it| *it).count()
        });
        assert!(passed <= 1, "{passed} took the last place, in round {round}");
    }
}

#[test]
fn cancelled_request_stays_cancelled() {
    let runtime = runtime();
    for round in 0..2_000 {
        let (failover, store) = failover();
        let admit = |check: &Check| runtime.block_on(failover.admit(check)).unwrap().admitted;
        failover.0.outage.record_failure();
        let log = log("user", round);
        let cancelled = Check::new([log.clone()]);
        assert!(admit(&cancelled));
        immediate(store.reset(std::slice::from_ref(&log))).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                runtime.block_on(failover.cancel(&cancelled)).unwrap();
            });
            together.wait();
            admit(&Check::new([log.clone()]));
        });
        runtime.block_on(failover.write_back_and_resync(std::slice::from_ref(&log))).unwrap();
        let mut repeated = cancelled.at_cost(0);
        repeated.repeated = true;
        let held =
            immediate(store.peek(&Arc::new(repeated))).unwrap().logs()[0].quotas()[0].remaining;
        assert_eq!(held, LIMIT - 1, "only the other request is there, in round {round}");
    }
}

#[tokio::test]
async fn excess_is_cancelled_until_there_is_room() {
    let window = Duration::from_micros(200);
    let (forgetful, outage) = (MemoryStore::new(), Outage::new());
    let store = Failover::new(forgetful.clone(), MemoryStore::new(), outage.clone());
    let policy = Arc::new(Policy::new("user").quota(Quota::new(1, window)));
    let logs = [LogId { policy, key: "alice".into() }];

    let (mut last, mut admissions) = (None, 0);
    while admissions < 2_000 {
        outage.record_failure();
        immediate(forgetful.reset(&logs)).unwrap();
        let sent = Instant::now();
        let outcome = store.admit(&Check::new(logs.clone())).await.unwrap();
        // Nothing is written back: the outage goes on.
        store.0.journal.with(|journal| journal.forget(&logs));
        if outcome.admitted {
            let gap = last.map(|last| Instant::now() - last);
            assert!(gap.is_none_or(|gap| gap >= window), "{gap:?} after the last");
            (last, admissions) = (Some(sent), admissions + 1);
        }
    }
}

/// Only a repeated check looks for its entry.
#[test]
fn recording_does_not_search_the_log() {
    let policy = Arc::new(Policy::new("all").quota(Quota::per_hour(1_000_000)));
    let local = MemoryStore::new();
    let check = |key: &str| Check::new([LogId { policy: policy.clone(), key: key.into() }]);
    let record = |key: &str, count: u32| {
        let began = std::time::Instant::now();
        (0..count).for_each(|_| local.record(&check(key), Instant::now()).unwrap());
        began.elapsed()
    };
    record("long", 400_000);
    let (long, short) = (record("long", 2_000), record("short", 2_000));
    assert!(long < 20 * short, "{long:?} in a long log, {short:?} in a short one");
}
