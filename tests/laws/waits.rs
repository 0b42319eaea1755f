//! Callers that wait are admitted as soon as there is room, in the order of their arrival.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::admit;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Limiter, MemoryStore, Policy, PolicyHandle, Quota, StoreError, WaitError,
};

const WINDOW: Duration = Duration::from_millis(300);
const HOUR: Duration = Duration::from_secs(3600);
const A_SECOND: Duration = Duration::from_secs(1);
/// More than a busy machine needs for what should take no time.
const AT_ONCE: Duration = Duration::from_secs(20);

test_support::on_every_store!(
    room_ends_the_wait,
    waiters_are_admitted_in_order,
    too_long_a_wait_is_denied_at_once,
    ban_is_denied_at_once,
    impossible_cost_is_an_error_at_once,
    raised_limit_ends_the_wait,
    cancellation_ends_the_wait,
    dropped_waiter_leaves_no_trace,
    keys_wait_apart,
);

async fn room_ends_the_wait(store: impl Store) {
    let limiter = Limiter::new(Quota::new(1, WINDOW), store);
    let first = limiter.until_admitted("bob").await.unwrap().timestamp().unwrap();
    let second = limiter.until_admitted("bob").await.unwrap().timestamp().unwrap();
    assert!(second - first >= WINDOW, "{:?}", second - first);
    let third = limiter.until_admitted_within("bob", HOUR).await.unwrap().timestamp().unwrap();
    assert!(third - second >= WINDOW, "{:?}", third - second);
}

async fn waiters_are_admitted_in_order(store: impl Store) {
    let limiter = Limiter::new(Quota::new(2, WINDOW), store);
    let (admitted, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for number in 0..7 {
        let (limiter, admitted) = (limiter.clone(), admitted.clone());
        tasks.spawn(async move {
            let timestamp = limiter.until_admitted("bob").await.unwrap().timestamp().unwrap();
            admitted.lock().unwrap().push((number, timestamp));
        });
    }
    tasks.join_all().await;
    let admitted = admitted.lock().unwrap();
    assert!(admitted.is_sorted() && admitted.is_sorted_by_key(|it| it.1), "{admitted:?}");
    for (before, after) in admitted.iter().zip(&admitted[2..]) {
        assert!(after.1 - before.1 >= WINDOW, "{admitted:?}");
    }
}

async fn too_long_a_wait_is_denied_at_once(store: impl Store) {
    let limiter = Limiter::new(Quota::new(1, HOUR), store);
    assert!(admit(&limiter, "bob").await);
    let began = Instant::now();
    for max_wait in [Duration::ZERO, HOUR - AT_ONCE * 2] {
        let error = limiter.until_admitted_within("bob", max_wait).await.unwrap_err();
        let denied = error.denied().unwrap();
        assert!((HOUR - AT_ONCE..=HOUR).contains(&denied.retry_after()), "{error}");
        assert_eq!(error.retry_after(), Some(denied.retry_after()));
        assert_eq!(denied.violated().collect::<Vec<_>>(), ["default"]);
    }
    assert!(began.elapsed() < AT_ONCE);
}

async fn ban_is_denied_at_once(store: impl Store) {
    let penalty = "1/10m:1h".parse().unwrap();
    let policy = Policy::new("user").quota(Quota::new(1, WINDOW)).penalty(penalty);
    let limiter = Limiter::new(policy, store);
    assert!(admit(&limiter, "bob").await);
    let began = Instant::now();
    for _ in 0..2 {
        // The denial of the first check is the strike that bans the key.
        let error = limiter.until_admitted("bob").await.unwrap_err();
        assert!(error.denied().unwrap().usage().banned_for().unwrap() > HOUR - AT_ONCE, "{error}");
    }
    assert!(began.elapsed() < AT_ONCE);
}

async fn impossible_cost_is_an_error_at_once(store: impl Store) {
    let limiter = Limiter::new(Quota::new(2, HOUR), store);
    assert!(limiter.until_admitted_cost("bob", 2).await.is_ok());
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.until_admitted_cost("bob", 2).await });
    for _ in 0..2 {
        let error = limiter.until_admitted_cost("bob", 3).await.unwrap_err();
        let is_impossible =
            matches!(error, WaitError::Store(StoreError::CostAboveLimit { cost: 3, limit: 2 }));
        assert!(is_impossible && error.retry_after().is_none(), "{error}");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!waiter.is_finished());
    waiter.abort();
}

async fn raised_limit_ends_the_wait(store: impl Store) {
    let policy = PolicyHandle::new(Quota::new(1, HOUR));
    let limiter = Limiter::new(&policy, store);
    assert!(admit(&limiter, "bob").await);
    let (raised, start) = (policy.clone(), Instant::now());
    tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        raised.set(Quota::new(2, HOUR)).unwrap();
    });
    assert!(limiter.until_admitted("bob").await.is_ok());
    assert!(start.elapsed() < A_SECOND + AT_ONCE, "{:?}", start.elapsed());
}

async fn cancellation_ends_the_wait(store: impl Store) {
    let limiter = Limiter::new(Quota::new(1, HOUR), store);
    let admitted = limiter.until_admitted("bob").await.unwrap();
    let (cancels, start) = (limiter.clone(), Instant::now());
    tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        assert!(cancels.cancel(&admitted).await.unwrap());
    });
    assert!(limiter.until_admitted("bob").await.is_ok());
    assert!(start.elapsed() < A_SECOND + AT_ONCE, "{:?}", start.elapsed());
}

async fn dropped_waiter_leaves_no_trace(store: impl Store) {
    let limiter = Limiter::new(Quota::new(2, WINDOW), store);
    assert!(limiter.until_admitted_cost("bob", 2).await.is_ok());
    let mut waiters: Vec<_> = (0..3)
        .map(|_| limiter.clone())
        .map(|limiter| tokio::spawn(async move { limiter.until_admitted("bob").await }))
        .collect();
    sleep(WINDOW / 3).await;
    waiters[0].abort();
    waiters[1].abort();
    assert!(waiters.pop().unwrap().await.unwrap().is_ok());
    assert_eq!(limiter.peek("bob").await.unwrap().remaining(), 1, "only the third took a place");
}

async fn keys_wait_apart(store: impl Store) {
    let limiter = Limiter::new(Quota::new(1, HOUR), store);
    assert!(admit(&limiter, "bob").await);
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.until_admitted("bob").await });
    sleep(Duration::from_millis(20)).await;
    for number in 0..20 {
        assert!(limiter.until_admitted(format!("ann-{number}")).await.is_ok());
    }
    assert!(!waiter.is_finished());
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn waiter_is_admitted_at_the_very_instant() {
    let limiter = Limiter::new(Quota::per_minute(1), MemoryStore::new());
    let start = Instant::now();
    for minute in 0..3 {
        assert!(limiter.until_admitted("bob").await.is_ok());
        assert_eq!(start.elapsed(), minute * Duration::from_secs(60));
    }
    // Never before it. The timer counts whole milliseconds, and rounds up.
    advance(Duration::from_micros(1_500)).await;
    let first = limiter.until_admitted("ann").await.unwrap().timestamp().unwrap();
    let second = limiter.until_admitted("ann").await.unwrap().timestamp().unwrap();
    let late = second - first - Duration::from_secs(60);
    assert!(late <= Duration::from_millis(1), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn later_caller_does_not_overtake() {
    let policy = PolicyHandle::new(Quota::new(1, HOUR));
    let limiter = Limiter::new(&policy, MemoryStore::new());
    assert!(admit(&limiter, "bob").await);
    let waiting = limiter.clone();
    let first = tokio::spawn(async move { waiting.until_admitted("bob").await });
    sleep(Duration::from_millis(1)).await;
    policy.set(Quota::new(2, HOUR)).unwrap();
    // There is room, and the first waiter does not know it yet.
    let second = limiter.until_admitted_within("bob", HOUR * 2).await.unwrap();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.timestamp(), Some(A_SECOND), "it checks again after a second");
    assert_eq!(second.timestamp(), Some(HOUR));
}
