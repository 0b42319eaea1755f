//! Denials that a store knows without waiting.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::advance;
use tower_sliding_window::store::{Check, DenyCache, LogId, Store};
use tower_sliding_window::{MemoryStore, Policy, Quota};

use crate::counting::Counting;

const TICK: Duration = Duration::from_micros(1);

fn per_minute(limit: u32) -> Arc<Policy> {
    Arc::new(Policy::new("user").quota(Quota::per_minute(limit)))
}

fn check(policy: &Arc<Policy>) -> Check {
    Check::new([LogId::new(policy.clone(), "alice")])
}

async fn admit(store: &impl Store, policy: &Arc<Policy>) -> bool {
    store.admit(&check(policy)).await.unwrap().admitted
}

/// Returns the wait of a known denial.
fn known_wait(store: &impl Store, policy: &Arc<Policy>) -> Option<Duration> {
    store.known_denial(&check(policy).logs()[0]).map(|state| state.wait())
}

#[tokio::test(start_paused = true)]
async fn memory_knows_a_full_log_to_the_microsecond() {
    let (store, policy) = (MemoryStore::new(), per_minute(2));
    assert_eq!(known_wait(&store, &policy), None, "no log");
    assert!(admit(&store, &policy).await);
    assert_eq!(known_wait(&store, &policy), None, "one place is free");
    advance(Duration::from_secs(1)).await;
    assert!(admit(&store, &policy).await);
    assert_eq!(known_wait(&store, &policy), Some(Duration::from_secs(59)));
    advance(Duration::from_secs(59) - TICK).await;
    assert_eq!(known_wait(&store, &policy), Some(TICK));
    advance(TICK).await;
    assert_eq!(known_wait(&store, &policy), None);
    assert!(admit(&store, &policy).await);
}

#[tokio::test(start_paused = true)]
async fn memory_leaves_what_changes_the_store_to_admit() {
    let (store, policy) = (MemoryStore::new(), per_minute(1));
    assert!(admit(&store, &policy).await);
    // A denial under a new policy sets how long the entries are kept.
    let longer = Arc::new(Policy::new("user").quota(Quota::per_hour(1)));
    assert_eq!(known_wait(&store, &longer), None);
    assert!(!admit(&store, &longer).await);
    assert_eq!(known_wait(&store, &longer), Some(Duration::from_secs(3_600)));
    // A denial under a penalty is a strike.
    let strict = Policy::new("strict").quota(Quota::per_minute(1));
    let strict = Arc::new(strict.penalty("3/10m:1h".parse().unwrap()));
    assert!(admit(&store, &strict).await);
    assert!(!admit(&store, &strict).await);
    assert_eq!(known_wait(&store, &strict), None);
}

#[tokio::test(start_paused = true)]
async fn cached_denial_is_known_until_its_renewal() {
    let (store, policy) = (Counting::default(), per_minute(1));
    let cache = DenyCache::new(store.clone());
    assert!(admit(&cache, &policy).await);
    assert_eq!(known_wait(&cache, &policy), None, "the store has denied nothing");
    assert!(!admit(&cache, &policy).await);
    assert_eq!(known_wait(&cache, &policy), Some(Duration::from_secs(60)));

    advance(Duration::from_millis(750)).await;
    for _ in 0..3 {
        assert_eq!(known_wait(&cache, &policy), None, "a look claims no renewal");
    }
    assert_eq!(store.checks(), 2);
    let renewal = tokio::spawn({
        let (cache, policy) = (cache.clone(), policy.clone());
        async move { admit(&cache, &policy).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(store.checks(), 3);
    let left = Duration::from_millis(59_250);
    assert_eq!(known_wait(&cache, &policy), Some(left), "another check renews it");
    assert!(!renewal.await.unwrap());

    cache.reset(check(&policy).logs()).await.unwrap();
    assert_eq!(known_wait(&cache, &policy), None);
}

#[tokio::test(start_paused = true)]
async fn denial_after_all_have_expired_is_known() {
    let (store, policy) = (Counting::default(), per_minute(1));
    let cache = DenyCache::new(store.clone()).max_age(Duration::MAX);
    for _ in 0..3 {
        assert!(admit(&cache, &policy).await);
        assert!(!admit(&cache, &policy).await);
        assert_eq!(known_wait(&cache, &policy), Some(Duration::from_secs(60)));
        advance(Duration::from_secs(60) - TICK).await;
        assert_eq!(known_wait(&cache, &policy), Some(TICK));
        advance(TICK).await;
        for _ in 0..2 {
            assert_eq!(known_wait(&cache, &policy), None);
        }
    }
}

/// A ban has a response of its own, and ends at another time than the wait of the quota.
#[tokio::test(start_paused = true)]
async fn cached_ban_is_not_a_known_denial() {
    let strict = Policy::new("strict").quota(Quota::per_minute(1));
    let strict = Arc::new(strict.penalty("1/10m:1h".parse().unwrap()));
    let cache = DenyCache::new(MemoryStore::new());
    assert!(admit(&cache, &strict).await);
    assert!(!admit(&cache, &strict).await);
    let outcome = cache.admit(&check(&strict)).await.unwrap();
    assert!(outcome.logs()[0].ban().is_banned());
    assert_eq!(known_wait(&cache, &strict), None);
}
