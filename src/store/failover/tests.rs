//! What one process may admit while the store has forgotten something.

use std::sync::Barrier;
use std::thread;

use tokio::runtime::Runtime;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;

const LIMIT: u32 = 5;

fn partition(name: &str, key: u64) -> Partition {
    let policy = Policy::new(name).quota(Quota::per_hour(LIMIT));
    Partition::new(Arc::new(policy), key.to_string())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A store in this process, in the place of Redis.
fn failover() -> (Failover<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    (Failover::new(store.clone(), MemoryStore::new(), Outage::new()), store)
}

#[test]
fn of_requests_that_come_together_no_more_pass_than_fit() {
    const THREADS: u32 = 4;
    let (runtime, (failover, store)) = (runtime(), failover());
    let admit = |check: Arc<Check>| runtime.block_on(failover.admit(&check)).unwrap().admitted;
    failover.0.outage.mark();
    let together = Barrier::new(THREADS as usize);
    for round in 0..5_000 {
        let window = partition("user", round);
        let check = || Arc::new(Check::new([window.clone()]));
        for _ in 1..LIMIT {
            assert!(admit(check()));
        }
        now(store.reset(std::slice::from_ref(&window))).unwrap();
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
fn what_is_cancelled_while_the_store_is_told_what_it_lacks_stays_cancelled() {
    let runtime = runtime();
    for round in 0..2_000 {
        let (failover, store) = failover();
        let admit = |check: &Arc<Check>| runtime.block_on(failover.admit(check)).unwrap().admitted;
        failover.0.outage.mark();
        let window = partition("user", round);
        let cancelled = Arc::new(Check::new([window.clone()]));
        assert!(admit(&cancelled));
        now(store.reset(std::slice::from_ref(&window))).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                runtime.block_on(failover.cancel(&cancelled)).unwrap();
            });
            together.wait();
            admit(&Arc::new(Check::new([window.clone()])));
        });
        runtime.block_on(failover.tell_everything(std::slice::from_ref(&window))).unwrap();
        let repeated = Check { repeated: true, cost: 0, ..Check::clone(&cancelled) };
        let held = now(store.peek(&Arc::new(repeated))).unwrap().states[0].remaining;
        assert_eq!(held, LIMIT - 1, "only the other request is there, in round {round}");
    }
}

#[tokio::test]
async fn what_a_forgetful_store_admits_is_taken_back_until_there_is_room_and_not_longer() {
    let window = Duration::from_micros(200);
    let (forgetful, outage) = (MemoryStore::new(), Outage::new());
    let store = Failover::new(forgetful.clone(), MemoryStore::new(), outage.clone());
    let policy = Arc::new(Policy::new("user").quota(Quota::new(1, window)));
    let partitions = [Partition { policy, key: "alice".into() }];

    let (mut last, mut admissions) = (None, 0);
    while admissions < 2_000 {
        outage.mark();
        now(forgetful.reset(&partitions)).unwrap();
        let sent = Instant::now();
        let verdict = store.admit(&Arc::new(Check::new(partitions.clone()))).await.unwrap();
        // Nor is it written back: the outage goes on.
        store.0.journal.lock().forget(&partitions);
        if verdict.admitted {
            let after = last.map(|last| Instant::now() - last);
            assert!(after.is_none_or(|after| after >= window), "{after:?} after another");
            (last, admissions) = (Some(sent), admissions + 1);
        }
    }
}
