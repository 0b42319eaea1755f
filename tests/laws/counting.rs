//! Policies that count distinct values, and requests in flight.

use crate::*;

const MS: Duration = Duration::from_millis(1);

fn accounts(limit: u32, window: Duration) -> Policy {
    Policy::new("accounts").quota(Quota::new(limit, window)).distinct()
}

fn jobs(limit: u32, lease: Duration) -> Policy {
    Policy::new("jobs").quota(Quota::new(limit, lease)).in_flight()
}

/// A caller with a value that is there takes no place, so nobody is before it.
pub(crate) async fn known_value_waits_behind_nobody(store: impl Store) {
    let policy = PolicyHandle::new(accounts(1, Duration::from_secs(3_600)));
    let limiter = limiter(&policy, store);
    let until = async |value: &'static str, longest| {
        let logs = || [LogCost::from((&policy, "address")).value(value)];
        limiter.until_admitted_all(logs, Some(longest)).await
    };
    until("alice", Duration::ZERO).await.unwrap();
    let mut bob = std::pin::pin!(until("bob", Duration::from_secs(7_200)));
    assert!(timeout(100 * MS, bob.as_mut()).await.is_err(), "he waits until alice has left");
    // More than a busy machine needs.
    let alice = timeout(20_000 * MS, until("alice", Duration::from_secs(7_200))).await;
    assert!(alice.is_ok_and(|alice| alice.is_ok()));
}

pub(crate) async fn check_without_a_value_is_an_error(store: impl Store) {
    let limiter = limiter(accounts(1, Duration::from_secs(3_600)), store);
    let error = limiter.check("address").await.unwrap_err();
    assert!(matches!(&error, StoreError::NoValue { policy } if policy == "accounts"), "{error}");
    assert!(error.to_string().contains("Limiter::check_value"), "{error}");
    assert_eq!(limiter.peek("address").await.unwrap().remaining(), 1, "for a new value");
    let explained = limiter.explain("address").await.unwrap();
    assert!(explained.admitted && explained.quotas[0].free == 1, "{explained:?}");
}

pub(crate) async fn permit_holds_its_place_until_it_is_dropped(store: impl Store) {
    // So long that a busy machine renews it.
    let limiter = limiter(jobs(2, 1_200 * MS), store);
    let acquire = async || limiter.acquire("tenant", Duration::ZERO).await;
    let (first, _second) = (acquire().await.unwrap(), acquire().await.unwrap());
    for _ in 0..10 {
        sleep(250 * MS).await;
        assert!(acquire().await.is_err(), "both renew their leases");
    }
    first.release().await;
    drop(acquire().await.unwrap());
    eventually("the place is free", async || acquire().await.is_ok()).await;
}

pub(crate) async fn callers_of_two_logs_wait_until_another_is_over(store: impl Store) {
    let limiter = limiter(Quota::per_hour(1), store);
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_hour(100)));
    let jobs = PolicyHandle::new(jobs(1, Duration::from_secs(30)));
    let first = limiter.check_all([(&user, "alice"), (&jobs, "tenant")]).await.unwrap();
    let first = limiter.hold(&admitted(first));
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let (limiter, user, jobs) = (limiter.clone(), user.clone(), jobs.clone());
        waiters.push(tokio::spawn(async move {
            let logs = || [(&user, "alice"), (&jobs, "tenant")];
            let admitted = limiter.until_admitted_all(logs, Some(Duration::from_secs(5))).await;
            admitted.map(|admitted| drop(limiter.hold(&admitted)))
        }));
        // The next one finds it waiting.
        sleep(100 * MS).await;
    }
    drop(first);
    for waiter in waiters {
        waiter.await.unwrap().expect("the wait is bounded by 5 s, and the lease by 30 s");
    }
    let next = admitted(limiter.check_all([(&user, "alice")]).await.unwrap());
    assert_eq!(next.remaining(), 95, "each counts once in the other log");
}

/// A bound that is shorter than the pause between two looks, and one that ends between two.
#[tokio::test(start_paused = true)]
async fn place_that_comes_free_within_a_short_bound_is_found() {
    for bound in [40, 120].map(|bound| bound * MS) {
        let limiter = Limiter::new(jobs(1, Duration::from_secs(30)), MemoryStore::new());
        let first = limiter.acquire("tenant", Duration::ZERO).await.unwrap();
        tokio::spawn(async move {
            sleep(bound - 5 * MS).await;
            drop(first);
        });
        let start = Instant::now();
        assert!(limiter.acquire("tenant", bound).await.is_ok(), "{bound:?}");
        assert!(start.elapsed() <= bound * 21 / 20, "{bound:?}");
    }
}

/// The same on a real clock, on which some time passes between a denial and the decision to wait.
#[tokio::test]
async fn short_bound_is_waited_for_on_a_real_clock() {
    let limiter = Limiter::new(jobs(1, Duration::from_secs(30)), MemoryStore::new());
    let _first = limiter.acquire("tenant", Duration::ZERO).await.unwrap();
    for bound in [20, 40, 80, 120].map(|bound| bound * MS) {
        for _ in 0..5 {
            let start = Instant::now();
            assert!(limiter.acquire("tenant", bound).await.is_err());
            assert!(start.elapsed() >= bound, "{bound:?}: gave up after {:?}", start.elapsed());
        }
    }
}
