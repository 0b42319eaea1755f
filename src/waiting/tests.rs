use std::convert::Infallible;
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::MemoryStore;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::Store;
use crate::window::{LogCost, LogOutcome};

#[tokio::test(start_paused = true)]
async fn later_waiter_bounds_no_earlier_caller() {
    let limiter = Limiter::new(Policy::from(Quota::per_minute(4)).budget(), MemoryStore::new());
    let denial = async |cost| limiter.check_cost(1_u64, cost).await.unwrap().denied().cloned();
    assert!(denial(3).await.is_none());
    advance(Duration::from_secs(10)).await;
    assert!(denial(1).await.is_none());
    let (in_50_s, in_60_s) = (denial(1).await, denial(4).await);
    let check = in_60_s.as_ref().unwrap().check().clone();
    let log = || check.logs[0].clone();
    let deadline = Instant::now() + Duration::from_secs(55);
    let waiter = |cost, deadline| Waiter::new(cost, log().policy, deadline);
    for joins_first in [false, true] {
        let waiting = WaitQueues::default();
        let [early, between, late] = [(); 3].map(|()| waiting.ticket());
        let join_late = || waiting.join(log(), late, waiter(4, None), in_60_s.clone());
        let joined = (!joins_first).then(join_late);
        let early_waiter = waiter(1, Some(deadline));
        assert!(!waiting.is_too_long(&log(), early, &early_waiter), "room in time");
        let early = waiting.join(log(), early, early_waiter, in_50_s.clone());
        let late = joined.unwrap_or_else(join_late);
        assert!(matches!((early.turn(), late.turn()), (Turn::Wait(Some(_)), Turn::Wait(None))));
        let between = waiting.is_too_long(&log(), between, &waiter(1, Some(deadline)));
        assert!(!between, "two of them have room in time");
    }
}

#[tokio::test(start_paused = true)]
async fn who_only_looks_at_a_log_makes_no_wait_longer() {
    let (store, waiting) = (MemoryStore::new(), WaitQueues::default());
    let log = LogId::new(Arc::new(Policy::from(Quota::per_minute(1))), 1_u64);
    let check = Check::new([log.clone()]);
    assert!(store.admit(&check).await.unwrap().admitted);
    advance(Duration::from_secs(20)).await;
    let looks = Waiter::new(0, log.policy.clone(), None);
    let _looks = waiting.join(log, waiting.ticket(), looks, None);
    let mut outcome = store.peek(&Check::new(check.logs.clone())).await.unwrap();
    waiting.deny_behind_all(&check, &mut outcome);
    assert_eq!(outcome.logs()[0].wait_us(), 40_000_000);
}

/// There is room, for those that wait.
#[tokio::test(start_paused = true)]
async fn denial_behind_others_is_by_the_log_that_they_wait_for() {
    let waiting = WaitQueues::default();
    let policy = |name| Arc::new(Policy::new(name).quota(Quota::per_minute(9)));
    let logs = ["free", "waited-for"].map(|name| LogId::new(policy(name), 1_u64));
    let waiter = Waiter::new(1, logs[1].policy.clone(), None);
    let _waits = waiting.join(logs[1].clone(), waiting.ticket(), waiter, None);
    let check = Check::new(logs);
    let states = check.logs.iter().map(|log| LogOutcome::empty(&log.policy));
    let mut outcome = Outcome::new(true, states);
    waiting.deny_behind_all(&check, &mut outcome);
    let denies: Vec<bool> = outcome.logs().iter().map(LogOutcome::denies).collect();
    assert_eq!((outcome.admitted, denies), (false, vec![false, true]));
}

/// Waits of four threads, a third of which are dropped and a third of which have a deadline. Each caller has
/// one to three logs of one key each, some given twice and some at no cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_stays_when_all_waits_have_ended() {
    for round in 0..3_u64 {
        let policy = Policy::from(Quota::new(3, Duration::from_millis(20))).budget();
        let (policy, waiting) = (Arc::new(policy), Arc::new(WaitQueues::default()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut tasks = JoinSet::new();
        for number in 0..300_u64 {
            let (policy, waiting, store) = (policy.clone(), waiting.clone(), store.clone());
            tasks.spawn(async move {
                let mut random = Rng::with_seed(round * 1_000 + number);
                let logs: Vec<_> = (0..random.usize(1..4))
                    .map(|_| {
                        let log = LogId::new(policy.clone(), random.u64(0..6));
                        LogCost::new(log, random.u32(0..4))
                    })
                    .collect();
                let check = || Check::with_costs(logs.clone());
                let most = Duration::from_millis(random.u64(0..97));
                let wait = async |deadline| {
                    let bounds = Bounds { deadline, max_waiters: DEFAULT_MAX_WAITERS };
                    let again = || Ok::<_, Infallible>(check());
                    until_admitted(&waiting, &store, check(), again, bounds).await
                };
                match number % 3 {
                    0 => drop(timeout(most, wait(None)).await),
                    1 => {
                        let start = Instant::now();
                        drop(wait(Some(start + most)).await);
                        assert!(start.elapsed() < most + Duration::from_secs(1));
                    }
                    _ => drop(wait(None).await.ok().unwrap()),
                }
            });
        }
        timeout(Duration::from_secs(60), tasks.join_all()).await.expect("a wait does not end");
        assert_eq!(waiting.count.load(Ordering::Relaxed), 0);
        assert!(waiting.lock().is_empty());
    }
}
