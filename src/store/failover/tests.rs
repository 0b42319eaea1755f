//! What one process may admit while the store has forgotten something.

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
        let window = log("user", round);
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
        let window = log("user", round);
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
        let held = now(store.peek(&Arc::new(repeated))).unwrap().logs()[0].quotas()[0].remaining;
        assert_eq!(held, LIMIT - 1, "only the other request is there, in round {round}");
    }
}

#[tokio::test]
async fn what_a_forgetful_store_admits_is_taken_back_until_there_is_room_and_not_longer() {
    let window = Duration::from_micros(200);
    let (forgetful, outage) = (MemoryStore::new(), Outage::new());
    let store = Failover::new(forgetful.clone(), MemoryStore::new(), outage.clone());
    let policy = Arc::new(Policy::new("user").quota(Quota::new(1, window)));
    let logs = [LogId { policy, key: "alice".into() }];

    let (mut last, mut admissions) = (None, 0);
    while admissions < 2_000 {
        outage.mark();
        now(forgetful.reset(&logs)).unwrap();
        let sent = Instant::now();
        let outcome = store.admit(&Arc::new(Check::new(logs.clone()))).await.unwrap();
        // Nor is it written back: the outage goes on.
        store.0.journal.lock().forget(&logs);
        if outcome.admitted {
            let after = last.map(|last| Instant::now() - last);
            assert!(after.is_none_or(|after| after >= window), "{after:?} after another");
            (last, admissions) = (Some(sent), admissions + 1);
        }
    }
}

/// A store whose first replies come late.
struct Late(MemoryStore, std::sync::Mutex<Vec<Duration>>);

impl Store for Late {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let outcome = self.0.admit(check);
        let delay = self.1.lock().unwrap().pop().unwrap_or_default();
        StoreFuture::later(async move {
            tokio::time::sleep(delay).await;
            outcome.await
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        self.0.peek(check)
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        self.0.cancel(check)
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        self.0.restore(log, known)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.0.reset(logs)
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_told_before_an_outage_is_honest_after_it() {
    let late = Late(MemoryStore::new(), vec![Duration::from_millis(40)].into());
    let outage = Outage::new();
    let store = Failover::new(late, MemoryStore::new(), outage.clone());
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
    let check = || Arc::new(Check::new([LogId { policy: policy.clone(), key: "a".into() }]));
    assert!(store.admit(&check()).await.unwrap().admitted);
    let told = store.admit(&check()).await.unwrap().logs()[0].quotas()[0].wait_us;
    outage.mark_reconnection();
    tokio::time::advance(Duration::from_micros(told)).await;
    let outcome = store.admit(&check()).await.unwrap();
    assert!(outcome.admitted, "the local entry leaves no later than the store's");
}

/// A repeated check alone looks whether it is there already.
#[test]
fn recording_does_not_look_through_the_log() {
    let policy = Arc::new(Policy::new("all").quota(Quota::per_hour(1_000_000)));
    let local = MemoryStore::new();
    let check = |key: &str| Check::new([LogId { policy: policy.clone(), key: key.into() }]);
    let record = |key: &str, count: u32| {
        let began = std::time::Instant::now();
        (0..count).for_each(|_| local.record(&check(key), Duration::ZERO).unwrap());
        began.elapsed()
    };
    record("long", 400_000);
    let (long, short) = (record("long", 2_000), record("short", 2_000));
    assert!(long < 20 * short, "{long:?} in a long log, {short:?} in a short one");
}
