//! What one process may admit while the store has forgotten something, with requests side by side.

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

fn admit(failover: &Failover<MemoryStore>, check: &Check) -> bool {
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
        let check = || Check::new([window.clone()]);
        for _ in 1..LIMIT {
            assert!(admit(&failover, &check()));
        }
        now(store.reset(&[window.clone()])).unwrap();
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
        let cancelled = Check::new([window.clone()]);
        assert!(admit(&failover, &cancelled));
        now(store.reset(&[window.clone()])).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                // The store has no part in this, or has answered at once.
                drop(failover.cancel(&cancelled));
            });
            together.wait();
            admit(&failover, &Check::new([window.clone()]));
        });
        let told = failover.kind_of(cancelled.id);
        assert_ne!(told, Some(TaskKind::Restore), "in round {round}");
    }
}
