//! The failover in front of a store that fails and is slow.

use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::store::DecidedBy;
use crate::store::faulty::Faulty;
use crate::window::LogCost;

fn faulty() -> (Failover<Faulty>, Faulty) {
    let store = Faulty::new();
    (Failover::new(store.clone(), MemoryStore::new(), Outage::new()), store)
}

fn policy(quota: Quota) -> Arc<Policy> {
    Arc::new(Policy::new("user").quota(quota))
}

fn check(policy: &Arc<Policy>, key: &str) -> Check {
    Check::new([LogId::new(policy.clone(), key)])
}

/// Runs only inside `block_on`, as in a test or in a synchronous program.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn check_does_not_wait_for_later_changes() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(100_000));
    let admitted: Vec<_> = (0..2_000).map(|_| check(&policy, "all")).collect();
    for check in &admitted {
        assert!(failover.admit(check).await.unwrap().admitted);
    }
    store.fail();
    assert!(failover.admit(&check(&policy, "all")).await.unwrap().admitted);
    store.work(Duration::from_millis(10));
    let cancelling = failover.clone();
    tokio::spawn(async move {
        for check in admitted {
            cancelling.cancel(&check).await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
    });
    let result = timeout(Duration::from_secs(1), failover.admit(&check(&policy, "all"))).await;
    let outcome = result.expect("the store takes 10 ms").unwrap();
    assert_eq!(outcome.decided_by, DecidedBy::Store);
}

#[tokio::test(start_paused = true)]
async fn late_poll_admits_no_more_in_an_outage() {
    let (failover, store) = faulty();
    let policy = policy(Quota::new(1, Duration::from_secs(3)));
    let late = failover.admit(&check(&policy, "alice"));
    advance(Duration::from_secs(2)).await;
    assert!(late.await.unwrap().admitted);
    store.fail();
    advance(Duration::from_secs(2)).await;
    assert!(!failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    advance(Duration::from_secs(1)).await;
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
}

/// The future of the first check is neither polled nor dropped, as after a `select!` on `&mut
/// future`.
#[tokio::test(start_paused = true)]
async fn unpolled_check_delays_no_other() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(5));
    store.fail();
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    store.work(Duration::from_millis(20));
    // Becomes the writer before the background task does.
    let mut first = failover.admit(&check(&policy, "alice"));
    assert!(timeout(Duration::from_micros(1), &mut first).await.is_err());
    let second = failover.admit(&check(&policy, "alice"));
    let result = timeout(Duration::from_secs(10), second).await;
    assert!(result.expect("the store takes 20 ms").unwrap().admitted);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn slow_write_back_admits_no_more() {
    let (failover, store) = faulty();
    let policy = policy(Quota::new(2, Duration::from_secs(1)));
    store.fail();
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    // The write-back and the check take 400 ms each.
    store.work(Duration::from_millis(400));
    let began = Instant::now();
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    let admitted_after = began.elapsed();
    assert!(admitted_after >= Duration::from_millis(600), "{admitted_after:?}");
    store.fail();
    // The store has counted the second request at 600 ms.
    advance(Duration::from_millis(1_100).saturating_sub(admitted_after)).await;
    let mut admitted = 0;
    for _ in 0..2 {
        let outcome = failover.admit(&check(&policy, "alice")).await.unwrap();
        admitted += usize::from(outcome.admitted);
    }
    assert!(admitted <= 1, "{admitted} within a second of the second request");
}

#[tokio::test(start_paused = true)]
async fn write_back_keeps_to_a_longer_window() {
    let (failover, store) = faulty();
    let short = policy(Quota::new(5, Duration::from_secs(1)));
    let long = policy(Quota::new(2, Duration::from_secs(60)));
    store.fail();
    for policy in [&short, &long] {
        assert!(failover.admit(&check(policy, "alice")).await.unwrap().admitted);
    }
    sleep(Duration::from_secs(2)).await;
    store.work(Duration::ZERO);
    sleep(Duration::from_secs(2)).await;
    // As another process would see it.
    let outcome = immediate(store.store.peek(&check(&long, "alice"))).unwrap();
    let state = outcome.logs()[0].quotas()[0];
    assert_eq!(state.remaining, 0, "both were written back");
}

#[tokio::test(start_paused = true)]
async fn wait_from_before_an_outage_is_honest() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_minute(1));
    // A prompt reply shows how the clocks differ.
    assert!(failover.admit(&check(&policy, "bob")).await.unwrap().admitted);
    store.work(Duration::from_millis(40));
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    store.work(Duration::ZERO);
    let denied = failover.admit(&check(&policy, "alice")).await.unwrap();
    failover.0.outage.record_reconnection();
    advance(Duration::from_micros(denied.logs()[0].quotas()[0].wait_us)).await;
    let outcome = failover.admit(&check(&policy, "alice")).await.unwrap();
    assert!(outcome.admitted, "the local entry expires no later than the store's");
}

#[tokio::test(start_paused = true)]
async fn ban_wait_is_honest_after_an_outage() {
    let (failover, store) = faulty();
    let quota = Quota::new(1, Duration::from_secs(60));
    let penalty = "1/10m:5m".parse().unwrap();
    let policy = Arc::new(Policy::new("user").quota(quota).penalty(penalty));
    assert!(failover.admit(&check(&policy, "mallory")).await.unwrap().admitted);
    let denied = failover.admit(&check(&policy, "mallory")).await.unwrap();
    let (denied_at, wait_us) = (Instant::now(), denied.logs()[0].ban().remaining_us);
    // The outcome of another request arrives late, with the same ban.
    store.work(Duration::from_millis(40));
    failover.admit(&check(&policy, "mallory")).await.unwrap();
    store.work(Duration::ZERO);
    failover.0.outage.record_reconnection();
    let wait = Duration::from_micros(wait_us);
    tokio::time::sleep_until(denied_at + wait - Duration::from_secs(1)).await;
    failover.0.outage.record_reconnection();
    tokio::time::sleep_until(denied_at + wait).await;
    let outcome = failover.admit(&check(&policy, "mallory")).await.unwrap();
    assert!(outcome.admitted, "{outcome:?}");
}

#[test]
fn write_back_outlives_a_runtime() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(5));
    store.fail();
    runtime().block_on(async {
        assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    });
    store.work(Duration::ZERO);
    runtime().block_on(async {
        assert!(failover.admit(&check(&policy, "bob")).await.unwrap().admitted);
        sleep(Duration::from_millis(200)).await;
    });
    let outcome = immediate(store.store.peek(&check(&policy, "alice"))).unwrap();
    let state = outcome.logs()[0].quotas()[0];
    assert_eq!(state.remaining, 4, "written back without another failure");
}

#[test]
fn unpolled_runtime_delays_no_other() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(5));
    let (one, other) = (runtime(), runtime());
    let admit = || failover.admit(&check(&policy, "alice"));
    store.fail();
    assert!(one.block_on(admit()).unwrap().admitted);
    store.work(Duration::from_millis(20));
    let first = one.block_on(async { timeout(Duration::from_millis(5), admit()).await });
    assert!(first.is_err());
    let result = other.block_on(async { timeout(Duration::from_secs(5), admit()).await });
    assert!(result.expect("within five seconds").unwrap().admitted);
}

/// The store takes the admission while it is settled, so the write-back has its earlier cost.
#[tokio::test(start_paused = true)]
async fn admission_being_written_is_settled() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(10));
    let reserved = check(&policy, "alice").at_cost(3);
    for actual in [5, 1] {
        store.fail();
        assert!(failover.admit(&reserved).await.unwrap().admitted);
        store.work(Duration::from_millis(100));
        let write_back = failover.clone();
        let logs = reserved.logs.clone();
        let writing = tokio::spawn(async move { write_back.write_back_changes(&logs).await });
        sleep(Duration::from_millis(75)).await;
        assert!(failover.settle(&reserved, actual).await.unwrap());
        writing.await.unwrap().unwrap();
        sleep(Duration::from_secs(2)).await;
        let outcome = immediate(store.store.peek(&check(&policy, "alice"))).unwrap();
        assert_eq!(outcome.logs()[0].quotas()[0].remaining, 10 - actual);
        failover.reset(&reserved.logs).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn different_costs_are_written_back() {
    let (failover, store) = faulty();
    let log = |name: &str| {
        let policy = Policy::new(name).quota(Quota::per_hour(10));
        LogId::new(Arc::new(policy), "alice")
    };
    let logs = [("parts", 4), ("messages", 1), ("free", 0)];
    let costs = logs.map(|(name, cost)| LogCost::new(log(name), cost));
    let check = Check::with_costs(costs);
    let logs = check.logs.clone();
    let left = async || {
        sleep(Duration::from_secs(2)).await;
        logs.iter()
            .map(|log| immediate(store.store.peek(&Check::new([log.clone()]))).unwrap())
            .map(|outcome| outcome.logs()[0].quotas()[0].remaining)
            .collect::<Vec<_>>()
    };
    store.fail();
    let outcome = failover.admit(&check).await.unwrap();
    assert_eq!(outcome.decided_by, DecidedBy::LocalLog);
    let of_log = |log: &crate::window::LogOutcome| log.quotas()[0].remaining;
    assert_eq!(outcome.logs().iter().map(of_log).collect::<Vec<_>>(), [6, 9, 10]);
    store.work(Duration::ZERO);
    assert_eq!(left().await, [6, 9, 10]);

    store.fail();
    let mut other = check.clone();
    other.id = uuid::Uuid::new_v4();
    assert!(failover.admit(&other).await.unwrap().admitted);
    assert!(failover.settle(&other.part(|index| index != 1), 2).await.unwrap());
    store.work(Duration::ZERO);
    assert_eq!(left().await, [4, 8, 10], "the log without the request stays without it");
}

/// The store replies again, but lacks what was decided without it.
#[tokio::test(start_paused = true)]
async fn explanation_waits_for_no_write_back() {
    let (failover, store) = faulty();
    let policy = policy(Quota::per_hour(5));
    store.fail();
    assert!(failover.admit(&check(&policy, "alice")).await.unwrap().admitted);
    store.set_behavior(|call, _| match call {
        "restore" => Err(StoreError::Unavailable),
        _ => Ok(Duration::ZERO),
    });
    let explain = async || failover.explain(&check(&policy, "alice")).await.unwrap().remove(0);
    let explained = explain().await;
    assert_eq!((explained.decided_by, explained.quotas[0].taken), (DecidedBy::LocalLog, 1));
    assert!(store.store.is_empty(), "nothing is written for it");
    store.work(Duration::ZERO);
    sleep(Duration::from_secs(1)).await;
    let explained = explain().await;
    assert_eq!((explained.decided_by, explained.quotas[0].taken), (DecidedBy::Store, 1));
}
