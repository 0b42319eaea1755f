//! Counters whose handles are kept: which recorder gets the counts, and under which name.

use std::time::Duration;

use test_support::recorder::RecordedMetrics;
use test_support::requests::{by_user, ok, status};
use tokio::time::advance;
use tower::{Layer, service_fn};
use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota};

const DENIED: &str = "sliding_window_decisions_total{policy=user,outcome=denied}";

fn one_a_day() -> Policy {
    Policy::new("user").quota(Quota::new(1, Duration::from_secs(86_400)))
}

/// Sends requests of one user, of which at most the first is admitted.
async fn flood(limiter: &Limiter, requests: u32) {
    for _ in 0..requests {
        let _ = limiter.check("mallory").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn denials_need_no_look_up() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let policy = PolicyHandle::new(one_a_day());
    let service = by_user(&policy, MemoryStore::new()).layer(service_fn(ok));
    for _ in 0..1_001 {
        status(&service, "mallory").await;
    }
    assert_eq!(recorded.count(DENIED), 1_000);
    assert_eq!(recorded.look_ups(), 3, "one for each counter, and for the logs");
}

#[tokio::test(start_paused = true)]
async fn each_recorder_gets_its_own_counts() {
    let limiter = Limiter::new(one_a_day(), MemoryStore::new());
    flood(&limiter, 10).await;
    let (late, _recorder) = RecordedMetrics::listen();
    flood(&limiter, 11).await;
    {
        let (inner, _recorder) = RecordedMetrics::listen();
        flood(&limiter, 7).await;
        assert_eq!(inner.count(DENIED), 7);
    }
    let (last, _recorder) = RecordedMetrics::listen();
    flood(&limiter, 3).await;
    assert_eq!((late.count(DENIED), last.count(DENIED)), (11, 3));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_idle_counter_returns() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let limiter = Limiter::new(one_a_day(), MemoryStore::new());
    flood(&limiter, 11).await;
    advance(Duration::from_secs(1)).await;
    recorded.drop_idle();
    flood(&limiter, 5).await;
    assert_eq!(recorded.count(DENIED), 5);
}

#[tokio::test(start_paused = true)]
async fn another_name_is_another_counter() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let unnamed: Policy = "1/1h".parse().unwrap();
    let first = Limiter::new(unnamed.clone(), MemoryStore::new());
    flood(&first, 2).await;
    // It has counted as `default`, and now gets the names of these policies.
    let handle = PolicyHandle::new(one_a_day());
    handle.set(unnamed.clone()).unwrap();
    flood(&Limiter::new(handle, MemoryStore::new()), 3).await;
    flood(&Limiter::new(unnamed.named("group"), MemoryStore::new()), 4).await;
    let denied = |policy: &str| {
        let labels = format!("policy={policy},outcome=denied");
        recorded.count(&format!("sliding_window_decisions_total{{{labels}}}"))
    };
    assert_eq!([denied("default"), denied("user"), denied("group")], [1, 2, 3]);
}
