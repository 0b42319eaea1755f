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

fn restore_in(journal: &mut Journal, key: u64) -> Check {
    let check = Check::new([partition("user", key)]);
    journal.note(check.clone(), TaskKind::Restore, Instant::now());
    check
}

#[tokio::test(start_paused = true)]
async fn what_has_left_its_windows_makes_room_in_the_journal() {
    let mut journal = Journal::new(4);
    for key in 0..4 {
        assert!(journal.has_room(Instant::now()));
        restore_in(&mut journal, key);
    }
    assert!(!journal.has_room(Instant::now()));
    tokio::time::advance(Duration::from_secs(3600)).await;
    for key in 4..100 {
        assert!(journal.has_room(Instant::now()), "for number {key}");
        restore_in(&mut journal, key);
        tokio::time::advance(Duration::from_secs(1200)).await;
    }
    assert!(!journal.concerns(&[partition("user", 0)]));
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(journal.next(10, Instant::now()).is_empty() && journal.len() == 0);
}

#[test]
fn what_can_t_be_done_holds_up_nothing_else() {
    let mut journal = Journal::new(100);
    let checks: Vec<Check> = (0..10).map(|key| restore_in(&mut journal, key)).collect();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..5 {
        // None of them is ever done.
        seen.extend(journal.next(2, Instant::now()).iter().map(|task| task.check.id));
    }
    assert_eq!(seen.len(), checks.len());
}

#[test]
fn a_task_that_was_replaced_while_it_was_under_way_is_still_to_be_done() {
    let mut journal = Journal::new(100);
    let check = restore_in(&mut journal, 0);
    let under_way = journal.next(1, Instant::now());
    journal.note(check.clone(), TaskKind::Cancel, Instant::now());
    journal.done(&under_way[0]);
    assert_eq!(journal.kind_of(check.id), Some(TaskKind::Cancel));
    let again = journal.next(1, Instant::now());
    journal.done(&again[0]);
    assert!(!journal.concerns(&check.partitions) && journal.len() == 0);
}
