//! Checks of concurrent callers, which go to Redis in one script call.

mod runtimes;

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, patient};
use tokio::task::JoinHandle;
use tower_sliding_window::store::{Check, LogId, Outcome, Store, StoreFuture};
use tower_sliding_window::{FailurePolicy, Policy, Quota, RedisStore, StoreError};

/// Returns the check of one request, which an outage answers with an error.
fn check(key: impl Into<String>) -> Check {
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(5)));
    let mut check = Check::new([LogId::new(policy, key.into())]);
    check.on_failure = FailurePolicy::Closed;
    check
}

fn spawn(outcome: StoreFuture<Outcome>) -> JoinHandle<Result<Outcome, StoreError>> {
    tokio::spawn(outcome)
}

/// Waits until Redis, which is paused, has a call.
async fn call_is_held_back(redis: &Redis) {
    let clients = async || redis.run::<String>(&["INFO", "clients"]).await;
    eventually("a call is held back", async || clients().await.contains("blocked_clients:1")).await;
}

/// Sends checks of these keys while a call is under way, so that they go together.
async fn together(
    redis: &Redis,
    store: &RedisStore,
    keys: impl Iterator<Item = String>,
) -> Vec<JoinHandle<Result<Outcome, StoreError>>> {
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let mut checks = vec![spawn(store.admit(&check("alone"))), spawn(store.admit(&check("first")))];
    call_is_held_back(redis).await;
    checks.extend(keys.map(|key| spawn(store.admit(&check(key)))));
    tokio::task::yield_now().await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    checks
}

#[tokio::test]
async fn concurrent_checks_share_a_call() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let before = redis.call_count("evalsha").await;
    let keys = (0..64).map(|number| format!("user-{number}"));
    for outcome in together(&redis, &store, keys).await {
        assert!(outcome.await.unwrap().unwrap().admitted);
    }
    let calls = redis.call_count("evalsha").await - before;
    assert!((3..=5).contains(&calls), "{calls} calls for 66 checks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn busy_process_sends_no_check_alone() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let round = async |users: Range<u32>| {
        let store = store.clone();
        let checks = async move {
            let checks: Vec<_> =
                users.map(|user| spawn(store.admit(&check(format!("user-{user}"))))).collect();
            for outcome in checks {
                assert!(outcome.await.unwrap().unwrap().admitted);
            }
        };
        // On the only worker, so that all checks are ready before the first one runs.
        evalsha_count(&redis, async { tokio::spawn(checks).await.unwrap() }).await
    };
    assert_eq!(round(0..10).await, 2, "the first goes alone");
    assert_eq!(round(10..20).await, 1, "the first waits for the others");
    assert_eq!(round(20..21).await, 1, "the last of the busy time");
    assert_eq!(round(21..31).await, 2, "the first goes alone");
}

#[tokio::test]
async fn one_log_in_a_call_keeps_its_limit() {
    let redis = Redis::start().await;
    let store = patient().deny_cache(false).connect(redis.url()).await.unwrap();
    let checks = together(&redis, &store, (0..32).map(|_| "alice".to_owned())).await;
    let mut admitted = 0;
    for outcome in checks.into_iter().skip(2) {
        let outcome = outcome.await.unwrap().unwrap();
        admitted += u32::from(outcome.admitted);
        let state = &outcome.logs()[0].quotas()[0];
        assert_eq!(outcome.admitted, state.wait().is_zero());
    }
    assert_eq!(admitted, 5);
    redis.has_entries("tsw:{=alice}:user:60s", 5).await;
}

#[tokio::test]
async fn checks_of_all_kinds_share_a_call() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let of_kind = |number: u32| {
        let quota = Quota::new(2 + number % 3, Duration::from_secs(60 + u64::from(number % 2)));
        let policy = Arc::new(Policy::new("user").quota(quota));
        let mut check = Check::new([LogId::new(policy, format!("user-{number}"))]);
        check.wants_reset = number.is_multiple_of(4);
        (quota, check)
    };
    let before = redis.call_count("evalsha").await;
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let mut held = vec![spawn(store.admit(&check("alone"))), spawn(store.admit(&check("first")))];
    tokio::task::yield_now().await;
    let checks: Vec<_> = (0..24).map(of_kind).collect();
    let send = |(_, check): &(Quota, Check)| spawn(store.admit(check));
    let outcomes: Vec<_> = checks.iter().map(send).collect();
    tokio::task::yield_now().await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    for outcome in held.drain(..) {
        assert!(outcome.await.unwrap().unwrap().admitted);
    }
    for ((quota, check), outcome) in checks.iter().zip(outcomes) {
        let outcome = outcome.await.unwrap().unwrap();
        let state = outcome.logs()[0].quotas()[0];
        assert!(outcome.admitted);
        assert_eq!(state.remaining(), quota.limit() - 1);
        assert!(outcome.timestamp.is_some());
        assert_eq!(state.reset() == quota.window(), check.wants_reset);
    }
    assert!(redis.call_count("evalsha").await - before <= 4);
}

/// Returns how many calls of scripts an action takes.
async fn evalsha_count(redis: &Redis, action: impl Future<Output = ()>) -> usize {
    let before = redis.call_count("evalsha").await;
    action.await;
    (redis.call_count("evalsha").await - before) as usize
}

#[tokio::test]
async fn concurrent_cancellations_share_a_call() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let policies =
        ["user", "ip"].map(|name| Arc::new(Policy::new(name).quota(Quota::per_minute(5))));
    let logs = |number: u32| {
        let log = |policy: &Arc<Policy>| LogId::new(policy.clone(), format!("key-{number}"));
        policies.iter().take(1 + number as usize % 2).map(log).collect::<Vec<_>>()
    };
    let check = |number| {
        let mut check = Check::new(logs(number));
        check.on_failure = FailurePolicy::Closed;
        check
    };
    let checks: Vec<_> = (0..64).map(check).collect();
    for check in &checks {
        assert!(store.admit(check).await.unwrap().admitted);
    }
    let cancel = async |numbers: Range<usize>| {
        let spawn = |check| tokio::spawn(store.cancel(check));
        let calls: Vec<_> = checks[numbers.clone()].iter().map(spawn).collect();
        for (number, cancelled) in numbers.zip(calls) {
            assert_eq!(cancelled.await.unwrap().unwrap_or_default(), number != 39);
        }
    };
    assert!(evalsha_count(&redis, cancel(0..32)).await <= 3);
    // The error of one log spares the others. How often the store tries that one again is not counted.
    redis.run::<()>(&["SET", "tsw:{=key-39}:user:60s", "no log"]).await;
    cancel(32..64).await;
    for number in (0..64).filter(|number| *number != 39) {
        assert_eq!(redis.entries(&format!("tsw:{{=key-{number}}}:user:60s")).await, 0);
        assert_eq!(redis.entries(&format!("tsw:{{=key-{number}}}:ip:60s")).await, 0);
    }
}

#[tokio::test]
async fn error_of_one_log_spares_the_others() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    redis.run::<()>(&["SET", "tsw:{=user-7}:user:60s", "no log"]).await;
    let keys = (0..20).map(|number| format!("user-{number}"));
    let checks = together(&redis, &store, keys).await;
    for (number, outcome) in checks.into_iter().skip(2).enumerate() {
        match outcome.await.unwrap() {
            Ok(outcome) => assert!(outcome.admitted && number != 7),
            Err(StoreError::Refused { code, .. }) => assert_eq!((number, &*code), (7, "WRONGTYPE")),
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn check_that_is_dropped_is_not_sent() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let keys = (0..10).map(|number| format!("user-{number}"));
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let held = [spawn(store.admit(&check("alone"))), spawn(store.admit(&check("first")))];
    tokio::task::yield_now().await;
    let dropped: Vec<_> = keys.map(|key| spawn(store.admit(&check(key)))).collect();
    tokio::task::yield_now().await;
    dropped.iter().for_each(JoinHandle::abort);
    let last = spawn(store.admit(&check("last")));
    tokio::task::yield_now().await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    for outcome in held.into_iter().chain([last]) {
        assert!(outcome.await.unwrap().unwrap().admitted);
    }
    assert_eq!(redis.run::<usize>(&["DBSIZE"]).await, 4, "with the mark");
}

#[tokio::test]
async fn lost_reply_is_repeated_one_by_one() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let store = patient().connect(proxy.url()).await.unwrap();
    proxy.set(Fault::Stall);
    let keys = (0..20).map(|number| format!("user-{number}"));
    let checks: Vec<_> = keys.map(|key| spawn(store.admit(&check(key)))).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.drop_replies(1);
    proxy.set(Fault::None);
    for outcome in checks {
        assert!(outcome.await.unwrap().unwrap().admitted);
    }
    assert!(proxy.dropped() > 0);
    for number in 0..20 {
        assert_eq!(redis.entries(&format!("tsw:{{=user-{number}}}:user:60s")).await, 1);
    }
}

#[tokio::test]
async fn unpolled_lone_check_delays_no_other() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let mut lone = store.admit(&check("lone"));
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut lone).poll(cx).is_pending())).await);
    let started = Instant::now();
    for number in 0..3 {
        let outcome = spawn(store.admit(&check(format!("user-{number}")))).await.unwrap();
        assert!(outcome.unwrap().admitted);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "before the time limit of the lone check");
    assert!(lone.await.unwrap().admitted);
}
