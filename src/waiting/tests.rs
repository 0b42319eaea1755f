use std::convert::Infallible;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::MemoryStore;
use crate::quota::Quota;
use crate::store::{Store, conclude};
use crate::window::{Admitted, Decision};

/// Callers of one policy.
#[derive(Clone)]
struct Callers {
    quota: Quota,
    store: Arc<dyn Store>,
    waiting: Arc<Waiting>,
}

impl Callers {
    fn new(quota: Quota) -> Self {
        Self { quota, store: Arc::new(MemoryStore::new()), waiting: Arc::new(Waiting::new()) }
    }

    fn check(&self, key: u64, cost: u32) -> Check {
        let policy = Arc::new(self.quota.into());
        Check::new([LogId::new(policy, key)]).at_cost(cost)
    }

    async fn denial(&self, cost: u32) -> Option<Denied> {
        let check = self.check(1, cost);
        let outcome = self.store.admit(&check).await;
        match conclude(check, outcome, false).unwrap() {
            Decision::Admitted(_) => None,
            Decision::Denied(denied) => Some(denied),
        }
    }

    async fn until_admitted(
        &self,
        key: u64,
        deadline: Option<Instant>,
    ) -> Result<Admitted, Ended<Infallible>> {
        let bounds = Bounds { deadline, max_waiters: DEFAULT_MAX_WAITERS };
        let again = || Ok(self.check(key, 1));
        until_admitted(&self.waiting, &self.store, self.check(key, 1), again, bounds).await
    }
}

#[tokio::test(start_paused = true)]
async fn earlier_caller_is_first_if_it_joins_later() {
    let callers = Callers::new(Quota::per_minute(1));
    assert!(callers.denial(1).await.is_none());
    let denied = callers.denial(1).await.unwrap();
    let waiting = Waiting::new();
    let [early, late] = [waiting.ticket(), waiting.ticket()];
    let join = |ticket| {
        let (log, waiter) = (denied.check().logs[0].clone(), Waiter::new(1, None));
        waiting.join(log, ticket, waiter, Some(denied.clone())).unwrap()
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
    let waiting = Waiting::new();
    let log = || in_60_s.as_ref().unwrap().check().logs[0].clone();
    let [early, late] = [waiting.ticket(), waiting.ticket()];
    let waiter = Waiter::new(4, None);
    let late = waiting.join(log(), late, waiter, in_60_s.clone()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(55);
    let waiter = Waiter::new(1, Some(deadline));
    let early = waiting.join(log(), early, waiter, in_50_s).expect("room in time");
    assert!(matches!((early.turn(), late.turn()), (Turn::Wait(Some(_)), Turn::Wait(None))));
}

/// Waits of four threads, a third of which are dropped and a third of which have a deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_stays_when_all_waits_have_ended() {
    let callers = Callers::new(Quota::new(3, Duration::from_millis(20)));
    let mut tasks = JoinSet::new();
    for number in 0..400_u64 {
        let callers = callers.clone();
        tasks.spawn(async move {
            let (key, most) = (number % 5, Duration::from_millis(number % 97));
            match number % 3 {
                0 => drop(timeout(most, callers.until_admitted(key, None)).await),
                1 => drop(callers.until_admitted(key, Some(Instant::now() + most)).await),
                _ => drop(callers.until_admitted(key, None).await.ok().unwrap()),
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(callers.waiting.count.load(Ordering::Relaxed), 0);
    assert!(callers.waiting.shards.iter().all(|it| it.lock().unwrap().is_empty()));
}
