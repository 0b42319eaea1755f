//! The in-process store beyond the laws: exact to the microsecond, bounded, and right under threads.

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use crate::*;

const TICK: Duration = Duration::from_micros(1);

#[tokio::test(start_paused = true)]
async fn only_expired_and_reset_logs_make_room() {
    let store = MemoryStore::with_capacity(20);
    let limiter = |name: String, ms| {
        let quota = Quota::new(1, Duration::from_millis(ms));
        Limiter::new(Policy::new(name).quota(quota), store.clone())
    };
    for ms in 1..=20 {
        assert!(admit(&limiter(format!("short-{ms}"), ms), "x").await);
    }
    let long = limiter("long".to_owned(), 60_000);
    for number in 0..20 {
        let key = number.to_string();
        advance(Duration::from_millis(1) - TICK).await;
        let error = long.check(&*key).await.unwrap_err();
        assert!(matches!(error, StoreError::Full { capacity: 20, .. }), "all are live: {error}");
        advance(TICK).await;
        assert!(admit(&long, &key).await, "room number {number}");
    }
    assert!(long.check("one more").await.is_err());
    let explained = long.explain("one more").await;
    assert!(matches!(explained, Err(StoreError::Full { .. })), "as a request: {explained:?}");
    assert!(long.explain("0").await.is_ok());
    long.reset("0").await.unwrap();
    assert!(admit(&long, "one more").await);
}

/// One thread makes room for all: the others must find it.
#[tokio::test(start_paused = true)]
async fn threads_all_find_freed_room_at_the_cap() {
    const THREADS: usize = 8;
    let runtime = Handle::current();
    for round in 0..100 {
        let limiter = Limiter::new(Quota::per_second(1), MemoryStore::with_capacity(THREADS));
        for old in 0..THREADS {
            assert!(admit(&limiter, &format!("old-{old}")).await);
        }
        assert!(limiter.check("one more").await.is_err());
        advance(Duration::from_secs(1)).await;
        let together = Barrier::new(THREADS);
        let new = &|thread: usize| {
            // Threads that have entered the runtime see its paused time.
            let _entered = runtime.enter();
            together.wait();
            let key = format!("new-{thread}");
            pin!(admit(&limiter, &key)).poll(&mut Context::from_waker(Waker::noop()))
        };
        std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|thread| scope.spawn(move || new(thread)));
            for thread in threads.collect::<Vec<_>>() {
                assert_eq!(thread.join().unwrap(), Poll::Ready(true), "round {round}");
            }
        });
    }
}

/// Checking a length and adding in two steps admits too many here, and threads that lock logs in different
/// orders stop here for ever.
#[test]
fn threads_never_over_admit_nor_deadlock() {
    let policy = |name: &str| Policy::new(name).quota(Quota::per_hour(1000));
    for logs in [1, 3] {
        let limiter = Limiter::new(policy("a"), MemoryStore::new());
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (limiter, passed) = (&limiter, &passed);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    for _ in 0..400 {
                        let pairs = [(policy("a"), "x"), (policy("b"), "y"), (policy("c"), "z")];
                        let mut pairs = pairs[..logs].to_vec();
                        pairs.rotate_left(thread % logs);
                        let decision = runtime.block_on(limiter.check_all(pairs)).unwrap();
                        passed.fetch_add(usize::from(decision.is_admitted()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn full_store_drops_no_log_before_its_retention() {
    let store = MemoryStore::with_capacity(2);
    let plan = |quota, keep_for| {
        let policy = Policy::new("user").quota(quota).keep_for(keep_for);
        Limiter::new(policy, store.clone())
    };
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let free = plan(Quota::per_second(1), second);
    let (paid, paid_by_hour) = (plan(Quota::per_second(1), hour), plan(Quota::per_hour(1), hour));
    assert!(admit(&paid, "alice").await && admit(&free, "bob").await);
    assert!(free.check("carol").await.is_err(), "the store is full, and sweeps");
    advance(second).await;
    assert!(admit(&free, "carol").await, "in the place of bob");
    assert!(!admit(&paid_by_hour, "alice").await, "her log is kept for an hour");
}

#[tokio::test(start_paused = true)]
async fn policy_violated_twice_is_named_once() {
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(1)));
    let limiter = Limiter::new(&user, MemoryStore::new());
    let both = async || limiter.check_all([(&user, "alice"), (&user, "bob")]).await.unwrap();
    assert!(both().await.is_admitted());
    let denied = both().await.denied().unwrap().clone();
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
    assert!(denied.to_response().body().contains(r#""violated-policies":["user"]"#));
}

/// The ban that a request causes is reported, also if the strike of another of its logs first needs the room of an expired
/// ban record.
#[tokio::test(start_paused = true)]
async fn ban_is_reported_although_another_strike_needs_room() {
    let second = Duration::from_secs(1);
    let store = MemoryStore::with_capacity(2);
    let policy = |name| Policy::new(name).quota(Quota::new(1, 10 * second));
    let [user, ip] = ["user", "ip"]
        .map(|name| PolicyHandle::new(policy(name).penalty("2/10m:1m".parse().unwrap())));
    let limiter = Limiter::new(&user, store.clone());
    // The first strike of alice.
    assert!(admit(&limiter, "alice").await && !admit(&limiter, "alice").await);
    advance(10 * second).await;
    let both = [(&user, "alice"), (&ip, "address")];
    assert!(limiter.check_all(both).await.unwrap().is_admitted());
    Bans::new(&user, store.clone()).impose("mallory", second, "").await.unwrap();
    advance(second).await;
    let decision = limiter.check_all(both).await.unwrap();
    let strikes: Vec<_> =
        decision.usage().bans().map(|(log, ban)| (log.policy.name(), ban.strike())).collect();
    assert_eq!(strikes, [("user", Strike::Banned), ("ip", Strike::Counted)]);
}

/// An older entry is live when the newest one is cancelled.
#[tokio::test(start_paused = true)]
async fn log_is_due_when_the_last_that_is_left_expires() {
    let second = Duration::from_secs(1);
    let store = MemoryStore::with_capacity(1);
    let limiter = Limiter::new(Quota::new(5, 10 * second), store.clone());
    assert!(admit(&limiter, "alice").await);
    advance(5 * second).await;
    assert!(admit(&limiter, "alice").await);
    advance(4 * second).await;
    let newest = limiter.check("alice").await.unwrap();
    advance(2 * second).await;
    assert!(limiter.check("bob").await.is_err(), "the log is there");
    assert!(limiter.cancel(newest.admitted().unwrap()).await.unwrap());
    assert!(limiter.check("bob").await.is_err());
    advance(4 * second).await;
    let only = limiter.check("bob").await.expect("it has expired");
    assert!(limiter.cancel(only.admitted().unwrap()).await.unwrap());
    assert!(store.is_empty());
}
