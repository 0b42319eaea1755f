//! The cache of denials: cheap under flood, and never wrong.

use std::sync::Arc;
use std::time::Duration;

use test_support::requests::{by_user, from_user, ok, status};
use test_support::{Redis, admit, patient_store, retry_after};
use tokio::sync::Notify;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::store::{Admission, Check, DenyCache, LogId, LogSnapshot, Store};
use tower_sliding_window::{Limiter, Policy, PolicyHandle, Quota};
use uuid::Uuid;

use crate::counting::Counting;

const TICK: Duration = Duration::from_micros(1);
const A_SECOND: Duration = Duration::from_secs(1);

/// A cache that believes a denial for as long as it says.
fn cached(store: &Counting) -> DenyCache<Counting> {
    DenyCache::new(store.clone()).max_age(Duration::MAX)
}

#[tokio::test(start_paused = true)]
async fn denied_key_costs_one_check_until_free() {
    let store = Counting::default();
    let limiter = Limiter::new(Quota::per_minute(2), cached(&store));
    assert!(admit(&limiter, "alice").await && admit(&limiter, "alice").await);
    for second in 0..60 {
        assert_eq!(retry_after(&limiter, "alice").await, Duration::from_secs(60 - second));
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(store.checks(), 3, "two admissions and one denial");
    assert!(admit(&limiter, "alice").await, "on the very tick");
}

#[tokio::test(start_paused = true)]
async fn slow_reply_causes_no_false_denial() {
    let slow = Duration::from_millis(300);
    for (before, after) in [(slow, Duration::ZERO), (Duration::ZERO, slow), (slow, slow)] {
        let store = Counting { before, after, ..Counting::default() };
        let limiter = Limiter::new(Quota::per_second(1), cached(&store));
        let truth = Limiter::new(Quota::per_second(1), store.store.clone());
        assert!(admit(&limiter, "alice").await);
        let told_wait = retry_after(&limiter, "alice").await;
        // The cache denies for as long as that is certain, and names the rest of the wait each time.
        let mut waited = Duration::ZERO;
        loop {
            let checks = store.checks();
            let decision = limiter.check("alice").await.unwrap();
            if store.checks() > checks {
                break;
            }
            let left = decision.denied().expect("the cache only denies").retry_after();
            let truly = truth.peek("alice").await.unwrap().retry_after();
            assert!(!truly.is_zero(), "the store would have admitted it");
            assert!(truly <= left, "told_wait {left:?}, which is too short: {truly:?}");
            assert_eq!(left + waited, told_wait, "the wait counts from when the reply arrived");
            advance(Duration::from_millis(1)).await;
            waited += Duration::from_millis(1);
        }
        assert!(waited <= told_wait, "the cache denies for {waited:?} of {told_wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_to_the_microsecond() {
    let store = Counting::default();
    let limiter = Limiter::new(Quota::per_second(1), cached(&store));
    assert!(admit(&limiter, "alice").await);
    assert_eq!(retry_after(&limiter, "alice").await, Duration::from_secs(1));
    advance(Duration::from_secs(1) - TICK).await;
    assert_eq!(retry_after(&limiter, "alice").await, TICK);
    assert_eq!(store.checks(), 2);
    advance(TICK).await;
    assert!(admit(&limiter, "alice").await);
}

#[tokio::test(start_paused = true)]
async fn cache_knows_which_policy_denied() {
    let store = Counting::default();
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(1)));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_minute(9)));
    let limiter = Limiter::new(&user, cached(&store));
    let check = async |name: &str, address: &str| {
        limiter.check_all([(&user, name), (&ip, address)]).await.unwrap()
    };
    assert!(check("alice", "here").await.is_admitted());
    assert!(!check("alice", "here").await.is_admitted());
    let checks = store.checks();
    for address in ["here", "there", "elsewhere"] {
        let decision = check("alice", address).await;
        let names: Vec<_> = decision.denied().unwrap().violated().collect();
        assert_eq!(names, ["user"], "the user's window follows the user");
    }
    assert_eq!(store.checks(), checks);
    assert!(check("bob", "here").await.is_admitted(), "the address was never full");
}

/// A denial at a cost of 1 does not say how long a higher cost waits in another log.
#[tokio::test(start_paused = true)]
async fn different_costs_go_to_the_store() {
    let store = Counting::default();
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::new(1, A_SECOND * 5)));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_minute(3)));
    let limiter = Limiter::new(&user, cached(&store));
    let check =
        async |cost| limiter.check_all([(&user, "alice", 1), (&ip, "here", cost)]).await.unwrap();
    assert!(check(1).await.is_admitted());
    assert_eq!(check(1).await.usage().retry_after(), A_SECOND * 5, "this denial is cached");
    for checks in 3..6 {
        let decision = check(3).await;
        assert_eq!(store.checks(), checks);
        assert_eq!(decision.usage().retry_after(), A_SECOND * 60);
        assert_eq!(decision.denied().unwrap().violated().collect::<Vec<_>>(), ["user", "ip"]);
    }
    advance(A_SECOND * 5).await;
    assert!(check(2).await.is_admitted());
    assert!(!check(1).await.is_admitted(), "the admission has dropped the denial");
    assert_eq!(store.checks(), 7);
}

#[tokio::test(start_paused = true)]
async fn cache_follows_policy_reset_and_cancel() {
    let store = Counting::default();
    let policy = PolicyHandle::new(Quota::per_minute(1));
    let limiter = Limiter::new(&policy, cached(&store));

    let first = limiter.check("alice").await.unwrap();
    assert!(!admit(&limiter, "alice").await);
    policy.set(Quota::per_minute(2)).unwrap();
    assert!(admit(&limiter, "alice").await);

    assert!(!admit(&limiter, "alice").await);
    limiter.cancel(first.admitted().unwrap()).await.unwrap();
    assert!(admit(&limiter, "alice").await);

    assert!(!admit(&limiter, "alice").await);
    limiter.reset("alice").await.unwrap();
    assert!(admit(&limiter, "alice").await);
}

#[tokio::test(start_paused = true)]
async fn denial_overtaken_by_a_reset_is_not_cached() {
    let hold = Arc::new(Notify::new());
    let mut store = Counting::default();
    let direct = Limiter::new(Quota::per_minute(1), store.clone());
    assert!(admit(&direct, "alice").await);

    store.hold = Some(hold.clone());
    let limiter = Limiter::new(Quota::per_minute(1), cached(&store));
    let denied = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("alice").await.unwrap().is_admitted() }
    });
    tokio::time::sleep(TICK).await; // the store has denied, its reply is under way
    limiter.reset("alice").await.unwrap();
    hold.notify_one();
    assert!(!denied.await.unwrap());

    hold.notify_one();
    assert!(admit(&limiter, "alice").await, "nothing but the overtaken reply denies it");
}

#[tokio::test(start_paused = true)]
async fn lower_cost_is_not_denied_for_a_higher_one() {
    let store = Counting::default();
    let limiter = Limiter::new(Quota::per_minute(5), cached(&store));
    assert!(limiter.check_cost("alice", 3).await.unwrap().is_admitted());
    assert!(!limiter.check_cost("alice", 3).await.unwrap().is_admitted());
    assert!(limiter.check_cost("alice", 2).await.unwrap().is_admitted());
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_for_a_second_at_most() {
    let store = Counting::default();
    let here = Limiter::new(Quota::per_minute(1), DenyCache::new(store.clone()));
    let there = Limiter::new(Quota::per_minute(1), DenyCache::new(store.clone()));
    let admitted = there.check("alice").await.unwrap();
    assert!(!admit(&here, "alice").await);
    there.cancel(admitted.admitted().unwrap()).await.unwrap();
    advance(Duration::from_millis(750) - TICK).await;
    assert!(!admit(&here, "alice").await);
    advance(Duration::from_millis(250) + TICK).await;
    assert!(admit(&here, "alice").await);
}

/// Also for a layer whose requests are never cancelled: another process may reset the log.
#[tokio::test(start_paused = true)]
async fn remote_reset_is_seen_within_a_second() {
    let store = Counting::default();
    let cache = DenyCache::new(store.clone());
    let policy = Policy::new("user").quota(Quota::per_minute(1));
    let service = by_user(policy.clone(), cache).layer(service_fn(ok));
    for expected in [200, 429] {
        assert_eq!(status(&service, "alice").await, expected);
    }
    Limiter::new(policy, store).reset("alice").await.unwrap();
    advance(Duration::from_secs(1)).await;
    assert_eq!(status(&service, "alice").await, 200);
}

#[tokio::test(start_paused = true)]
async fn busy_key_costs_one_check_at_a_time() {
    let store = Counting { after: Duration::from_millis(20), ..Counting::default() };
    let limiter = Limiter::new(Quota::per_hour(1), DenyCache::new(store.clone()));
    assert!(admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "alice").await);
    let checks = store.checks();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        for _ in 0..10 {
            let limiter = limiter.clone();
            requests.spawn(async move { admit(&limiter, "alice").await });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(requests.join_all().await.iter().all(|admitted| !admitted));
    let more = store.checks() - checks;
    assert!((10..=14).contains(&more), "{more} checks in ten seconds, of 10,000 requests");
}

#[tokio::test(start_paused = true)]
async fn old_denial_stays_gone_with_its_policy() {
    let store = Counting::default();
    let policy = PolicyHandle::new("2/10s".parse::<Policy>().unwrap());
    let limiter = Limiter::new(&policy, cached(&store));
    assert!(admit(&limiter, "alice").await);
    advance(Duration::from_millis(300)).await;
    assert!(admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "alice").await);
    policy.set("3/10s".parse::<Policy>().unwrap()).unwrap();
    assert!(admit(&limiter, "alice").await);
    policy.set("2/10s".parse::<Policy>().unwrap()).unwrap();
    advance(Duration::from_millis(100)).await;
    let decision = limiter.check("alice").await.unwrap();
    let told_wait = decision.denied().unwrap().retry_after();
    assert_eq!(told_wait, Duration::from_millis(9_900), "the second admission has to leave");
}

#[tokio::test(start_paused = true)]
async fn admission_ends_the_cached_denial() {
    let store = Counting::default();
    let limiter = Limiter::new("2/10s".parse::<Policy>().unwrap(), cached(&store));
    let elsewhere = Limiter::new("2/10s".parse::<Policy>().unwrap(), store);
    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    assert!(!admit(&limiter, "alice").await);
    elsewhere.reset("alice").await.unwrap();
    advance(Duration::from_millis(500)).await;
    assert!(limiter.check_cost("alice", 2).await.unwrap().is_admitted());
    let decision = limiter.check("alice").await.unwrap();
    assert_eq!(decision.denied().unwrap().retry_after(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn admitted_renewal_ends_the_denial() {
    let store = Counting::default();
    let policy: Policy = "2/10s".parse().unwrap();
    let limiter = Limiter::new(policy.clone(), DenyCache::new(store.clone()));
    assert!(admit(&limiter, "alice").await && admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "alice").await);
    Limiter::new(policy, store).reset("alice").await.unwrap();
    assert!(!admit(&limiter, "alice").await, "another process has reset the log");
    advance(Duration::from_millis(800)).await;
    assert!(admit(&limiter, "alice").await, "the renewal");
    assert!(admit(&limiter, "alice").await, "the other place");
    assert_eq!(retry_after(&limiter, "alice").await, Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_with_cancel_if() {
    let store = Counting::default();
    let layer = by_user(Quota::per_minute(1), cached(&store)).cancel_if(|_| false);
    let service = layer.layer(service_fn(ok));
    for expected in [200, 429, 429, 429] {
        assert_eq!(status(&service, "alice").await, expected);
    }
    assert_eq!(store.checks(), 2, "there is nothing to cancel of a denial");
}

#[tokio::test]
async fn cached_denial_has_its_own_timestamp() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let policy = Arc::new(Policy::new("user").quota(Quota::per_hour(1)));
    let check = || Check::new([LogId::new(policy.clone(), "alice")]);
    let mut earlier = Duration::ZERO;
    for admitted in [true, false, false, false] {
        let outcome = store.admit(&check()).await.unwrap();
        assert_eq!(outcome.admitted, admitted);
        let timestamp = outcome.timestamp.unwrap();
        assert!(timestamp > earlier, "{timestamp:?} after {earlier:?}");
        earlier = timestamp;
    }
    assert_eq!(redis.call_count("evalsha").await, 2, "the cache repeats the denial");
}

#[tokio::test(start_paused = true)]
async fn cache_keeps_to_its_capacity() {
    let store = Counting::default();
    let limiter = Limiter::new(Quota::per_minute(1), cached(&store).capacity(100));
    for key in 0..1000 {
        let key = key.to_string();
        assert!(admit(&limiter, &key).await);
        assert!(!admit(&limiter, &key).await);
    }
    let checks = store.checks();
    for key in 0..1000 {
        assert!(!admit(&limiter, &key.to_string()).await);
    }
    assert!(store.checks() - checks >= 850, "at most 100 and some were remembered");
}

/// 64 connections in flight, 200,000 requests of one user: the calls end when the window is full.
#[tokio::test(flavor = "multi_thread")]
async fn flood_of_one_user_costs_few_scripts() {
    let redis = Redis::start().await;
    let layer = by_user(Quota::per_hour(5), patient_store(redis.url()).await);
    let service = layer.layer(service_fn(ok));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let mut service = service.clone();
        clients.spawn(async move {
            let mut admitted = 0;
            for _ in 0..200_000 / 64 {
                let response = service.ready().await.unwrap().call(from_user("bot")).await.unwrap();
                admitted += usize::from(response.status().is_success());
                // As a server reads its next request.
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    assert_eq!(clients.join_all().await.into_iter().sum::<usize>(), 5);
    let calls = redis.call_count("evalsha").await + redis.call_count("eval").await;
    assert!(calls <= 130, "{calls} script calls");
}

#[tokio::test(start_paused = true)]
async fn restored_admission_forgets_a_denial() {
    let store = Counting::default();
    let (cache, quota) = (cached(&store), Quota::new(2, Duration::from_secs(10)));
    let limiter = Limiter::new(Policy::new("user").quota(quota), cache.clone());
    assert!(admit(&limiter, "alice").await);
    advance(Duration::from_secs(1)).await;
    assert!(admit(&limiter, "alice").await);
    assert_eq!(retry_after(&limiter, "alice").await, Duration::from_secs(9));
    let log = LogId::new(Arc::new(Policy::new("user").quota(quota)), "alice");
    let known = LogSnapshot::new(vec![Admission::new(Uuid::new_v4(), 1, Duration::ZERO)]);
    assert_eq!(cache.restore(&log, &known).await.unwrap().added, 1);
    assert_eq!(retry_after(&limiter, "alice").await, Duration::from_secs(10));
}
