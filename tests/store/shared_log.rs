//! The log that policies of one name and one retention share, and what Redis keeps of it.

use std::time::Duration;

use test_support::{Redis, on_every_store};
use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Admitted, Decision, Limiter, Policy, PolicyHandle, Quota};

const A_SECOND: Duration = Duration::from_secs(1);

fn policy(quotas: &str) -> Policy {
    quotas.parse::<Policy>().unwrap().named("user")
}

async fn admit(store: &(impl Store + Clone), policy: Policy) -> Option<Admitted> {
    match Limiter::new(policy, store.clone()).check("alice").await.unwrap() {
        Decision::Admitted(admitted) => Some(admitted),
        Decision::Denied(_) => None,
    }
}

async fn remaining(store: &(impl Store + Clone), policy: Policy) -> u32 {
    Limiter::new(policy, store.clone()).peek("alice").await.unwrap().remaining()
}

on_every_store!(
    one_name_and_retention_share_a_log,
    another_retention_has_another_log,
    two_rules_of_one_name_hold_both,
    handle_keeps_its_log_while_windows_get_shorter,
);

async fn one_name_and_retention_share_a_log(store: impl Store + Clone) {
    let short = || policy("2/1s").keep_for(A_SECOND * 60);
    assert!(admit(&store, policy("9/60s")).await.is_some());
    assert!(admit(&store, short()).await.is_some());
    assert!(admit(&store, short()).await.is_none(), "the short window is full");
    assert_eq!(remaining(&store, policy("9/60s")).await, 7);
    sleep(A_SECOND * 11 / 10).await;
    assert!(admit(&store, short()).await.is_some());
    assert_eq!(remaining(&store, policy("9/60s")).await, 6, "the long window has all three");
}

async fn another_retention_has_another_log(store: impl Store + Clone) {
    assert!(admit(&store, policy("1/60s")).await.is_some());
    assert!(admit(&store, policy("1/1h")).await.is_some());
    for quotas in ["1/60s", "1/1h"] {
        assert!(admit(&store, policy(quotas)).await.is_none());
    }
}

/// Some requests meet both rules, and some only one of them: 6 a minute hold for all of the second kind.
async fn two_rules_of_one_name_hold_both(store: impl Store + Clone) {
    let [short, long] = [policy("3/1s"), policy("6/60s")].map(PolicyHandle::new);
    let limiter = Limiter::new(&short, store.clone());
    let mut admitted = [0, 0];
    for _ in 0..4 {
        for _ in 0..2 {
            let both = limiter.check_all([(&short, "alice"), (&long, "alice")]).await.unwrap();
            admitted[0] += u32::from(both.is_admitted());
            let one = limiter.check_all([(&short, "alice")]).await.unwrap();
            admitted[1] += u32::from(one.is_admitted());
        }
        sleep(A_SECOND * 11 / 10).await;
    }
    assert_eq!(admitted[0], 6, "in a minute");
    assert_eq!(admitted[1], 5, "3 a second, less those of both kinds");
}

async fn handle_keeps_its_log_while_windows_get_shorter(store: impl Store + Clone) {
    let user = PolicyHandle::new(policy("3/60s"));
    let limiter = Limiter::new(&user, store);
    for _ in 0..2 {
        assert!(limiter.check("alice").await.unwrap().is_admitted());
    }
    user.set(Quota::new(9, A_SECOND)).unwrap();
    sleep(A_SECOND * 11 / 10).await;
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 9);
    user.set(Quota::per_minute(3)).unwrap();
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 1, "the log kept both");
    assert!(user.set(Quota::per_hour(3)).unwrap().begins_new_logs());
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 3);
}

#[tokio::test]
async fn log_lives_for_its_retention() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    for (policy, log, retention_ms) in [
        (policy("3/1s"), "tsw:{=alice}:user:1s", 1_000),
        (policy("3/900ms,3/1500ms"), "tsw:{=alice}:user:1500ms", 1_500),
        (policy("3/1s").keep_for(A_SECOND * 60), "tsw:{=alice}:user:60s", 60_000),
    ] {
        let admitted = admit(&store, policy.clone()).await.unwrap();
        let ttl_ms: i64 = redis.run(&["PTTL", log]).await;
        let (least, most) = (retention_ms + 500, retention_ms + 1_001);
        assert!((least..=most).contains(&ttl_ms), "{log}: {ttl_ms}");
        Limiter::new(policy, store.clone()).cancel(&admitted).await.unwrap();
        assert_eq!(redis.run::<i64>(&["EXISTS", log]).await, 0, "it has no entry");
    }
}
