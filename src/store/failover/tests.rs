//! What one process may admit while the store has forgotten something.

use std::sync::Barrier;
use std::thread;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;

const LIMIT: u32 = 5;

fn partition(name: &str, key: u64) -> Partition {
    let policy = Policy::new(name).quota(Quota::per_hour(LIMIT));
    Partition::new(Arc::new(policy), key.to_string())
}

/// A store in this process, in the place of Redis.
fn failover() -> (Failover<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    (Failover::new(store.clone(), MemoryStore::new(), Trouble::new()), store)
}

fn admit(failover: &Failover<MemoryStore>, check: &Arc<Check>) -> bool {
    now(failover.admit(check)).unwrap().admitted
}

#[test]
fn of_requests_that_come_together_no_more_pass_than_fit() {
    const THREADS: u32 = 4;
    let (failover, store) = failover();
    failover.0.trouble.mark();
    let together = Barrier::new(THREADS as usize);
    for round in 0..5_000 {
        let window = partition("user", round);
        let check = || Arc::new(Check::new([window.clone()]));
        for _ in 1..LIMIT {
            assert!(admit(&failover, &check()));
        }
        now(store.reset(std::slice::from_ref(&window))).unwrap();
        let one = || {
            together.wait();
            admit(&failover, &check())
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
    for round in 0..5_000 {
        let (failover, store) = failover();
        failover.0.trouble.mark();
        let window = partition("user", round);
        let cancelled = Arc::new(Check::new([window.clone()]));
        assert!(admit(&failover, &cancelled));
        now(store.reset(std::slice::from_ref(&window))).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                // The store has no part in this, or has answered at once.
                drop(failover.cancel(&cancelled));
            });
            together.wait();
            admit(&failover, &Arc::new(Check::new([window.clone()])));
        });
        let told = failover.0.journal.kind_of(cancelled.id);
        assert_ne!(told, Some(TaskKind::Restore), "in round {round}");
    }
}

#[test]
fn what_a_forgetful_store_admits_is_taken_back_until_there_is_room_and_not_longer() {
    let window = Duration::from_micros(200);
    let (forgetful, trouble) = (MemoryStore::new(), Trouble::new());
    let store = Failover::new(forgetful.clone(), MemoryStore::new(), trouble.clone());
    let policy = Arc::new(Policy::new("user").quota(Quota::new(1, window)));
    let partitions = [Partition { policy, key: "alice".into() }];

    let (mut last, mut admissions) = (None, 0);
    while admissions < 2_000 {
        trouble.mark();
        now(forgetful.reset(&partitions)).unwrap();
        let sent = Instant::now();
        let verdict = now(store.admit(&Arc::new(Check::new(partitions.clone())))).unwrap();
        // Nor is it written back: the outage goes on.
        store.0.journal.lock().forget(&partitions);
        if verdict.admitted {
            let after = last.map(|last| Instant::now() - last);
            assert!(after.is_none_or(|after| after >= window), "{after:?} after another");
            (last, admissions) = (Some(sent), admissions + 1);
        }
    }
}
