use std::convert::Infallible;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::MemoryStore;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::{Store, conclude};
use crate::window::{Decision, LogCost};

/// Callers of one policy.
#[derive(Clone)]
struct Callers {
    quota: Quota,
    store: Arc<dyn Store>,
    waiting: Arc<Waiting>,
}

impl Callers {
    fn new(quota: Quota) -> Self {
        Self { quota, store: Arc::new(MemoryStore::new()), waiting: Arc::default() }
    }

    async fn denial(&self, cost: u32) -> Option<Denied> {
        let policy = Arc::new(Policy::from(self.quota).budget());
        let check = Check::new([LogId::new(policy, 1_u64)]).at_cost(cost);
        let outcome = self.store.admit(&check).await;
        match conclude(check, outcome, false).unwrap() {
            Decision::Admitted(_) => None,
            Decision::Denied(denied) => Some(denied),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn earlier_caller_is_first_if_it_joins_later() {
    let callers = Callers::new(Quota::per_minute(1));
    assert!(callers.denial(1).await.is_none());
    let denied = callers.denial(1).await.unwrap();
    let waiting = Waiting::default();
    let [early, late] = [waiting.ticket(), waiting.ticket()];
    let join = |ticket| {
        let log = denied.check().logs[0].clone();
        let waiter = Waiter::new(1, log.policy.clone(), None);
        waiting.join((denied.check(), log), ticket, waiter, Some(denied.clone()))
    };
    let late = join(late);
    assert!(matches!(late.turn(), Turn::Wait(Some(_))), "it is alone");
    let early = join(early);
    assert!(matches!(early.turn(), Turn::Wait(Some(_))));
    assert!(matches!(late.turn(), Turn::Wait(None)), "it is behind the other one");
    drop(early);
    assert!(matches!(late.turn(), Turn::Wait(Some(_))));
}

#[tokio::test(start_paused = true)]
async fn later_waiter_bounds_no_earlier_caller() {
    let callers = Callers::new(Quota::per_minute(4));
    assert!(callers.denial(3).await.is_none());
    advance(Duration::from_secs(10)).await;
    assert!(callers.denial(1).await.is_none());
    let (in_50_s, in_60_s) = (callers.denial(1).await, callers.denial(4).await);
    let check = in_60_s.as_ref().unwrap().check().clone();
    let log = || check.logs[0].clone();
    let deadline = Instant::now() + Duration::from_secs(55);
    let waiter = |cost, deadline| Waiter::new(cost, log().policy, deadline);
    for joins_first in [false, true] {
        let waiting = Waiting::default();
        let [early, between, late] = [(); 3].map(|()| waiting.ticket());
        let join_late = || waiting.join((&check, log()), late, waiter(4, None), in_60_s.clone());
        let joined = (!joins_first).then(join_late);
        let early_waiter = waiter(1, Some(deadline));
        assert!(waiting.too_long(&log(), early, &early_waiter).is_none(), "room in time");
        let early = waiting.join((&check, log()), early, early_waiter, in_50_s.clone());
        let late = joined.unwrap_or_else(join_late);
        assert!(matches!((early.turn(), late.turn()), (Turn::Wait(Some(_)), Turn::Wait(None))));
        let between = waiting.too_long(&log(), between, &waiter(1, Some(deadline)));
        assert!(between.is_none(), "two of them have room in time");
    }
}

/// Waits of four threads, a third of which are dropped and a third of which have a deadline. Each caller has
/// one to three logs of one key each, some given twice and some at no cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_stays_when_all_waits_have_ended() {
    for round in 0..3_u64 {
        let callers = Callers::new(Quota::new(3, Duration::from_millis(20)));
        let mut tasks = JoinSet::new();
        for number in 0..300_u64 {
            let callers = callers.clone();
            tasks.spawn(async move {
                let mut seed = (round * 1_000 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut draw = |most: u64| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed % most
                };
                let policy = Arc::new(Policy::from(callers.quota).budget());
                let logs: Vec<_> = (0..1 + draw(3))
                    .map(|_| LogCost::new(LogId::new(Arc::clone(&policy), draw(6)), draw(4) as u32))
                    .collect();
                let check = || Check::with_costs(logs.clone());
                let most = Duration::from_millis(draw(97));
                let wait = async |deadline| {
                    let bounds = Bounds { deadline, max_waiters: DEFAULT_MAX_WAITERS };
                    let again = || Ok::<_, Infallible>(check());
                    until_admitted(&callers.waiting, &callers.store, check(), again, bounds).await
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
        assert_eq!(callers.waiting.count.load(Ordering::Relaxed), 0);
        assert!(callers.waiting.lock().is_empty());
    }
}

/// As many wait as may. A caller that would wait for longer than it may is denied, with the time.
#[tokio::test(start_paused = true)]
async fn too_long_a_wait_is_a_denial_also_if_too_many_wait() {
    let callers = Callers::new(Quota::per_minute(1));
    assert!(callers.denial(1).await.is_none());
    let wait = async |most: u64| {
        let policy = Arc::new(Policy::from(callers.quota).budget());
        let check = || Check::new([LogId::new(policy.clone(), 1_u64)]);
        let deadline = Some(Instant::now() + Duration::from_secs(most));
        let (again, bounds) =
            (|| Ok::<_, Infallible>(check()), Bounds { deadline, max_waiters: 1 });
        until_admitted(&callers.waiting, &callers.store, check(), again, bounds).await
    };
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        wait(5).await
    };
    let (first, late) = tokio::join!(wait(100), late);
    assert!(first.is_ok() && matches!(late, Err(Ended::Denied(_))));
}
