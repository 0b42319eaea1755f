//! The denials that a process repeats from memory: cheap under flood.

use crate::*;

/// 64 connections in flight, 40,000 requests of one user: the calls end when the window is full. Nobody counts strikes, so a
/// denial hides none.
#[tokio::test(flavor = "multi_thread")]
async fn flood_of_one_user_costs_few_scripts() {
    let redis = Redis::start().await;
    let policy = Policy::new("user").quota(Quota::per_hour(5)).penalty(Penalty::manual());
    let layer = by_user(policy, patient_store(redis.url()).await);
    let service = layer.layer(service_fn(ok));
    let clients = join_all((0..64).map(|_| {
        let service = service.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..40_000 / 64 {
                admitted += usize::from(status(&service, "bot").await == 200);
                // As a server reads its next request.
                tokio::task::yield_now().await;
            }
            admitted
        })
    }));
    assert_eq!(clients.await.into_iter().map(Result::unwrap).sum::<usize>(), 5);
    let calls = redis.call_count("evalsha").await + redis.call_count("eval").await;
    assert!(calls <= 130, "{calls} script calls");
}

/// Each quota has the places that it has, also one that does not deny.
#[tokio::test]
async fn repeated_denial_says_what_is_left() {
    let redis = Redis::start().await;
    let limiter = Limiter::new("5/60s,1/10s".parse::<Policy>().unwrap(), redis.store().await);
    assert!(admit(&limiter, "alice").await);
    for _ in 0..3 {
        let denied = limiter.check("alice").await.unwrap();
        let left = denied.usage().quotas().map(|(.., state)| state.remaining());
        assert_eq!(left.collect::<Vec<_>>(), [0, 4]);
    }
}

/// Redis denies a check while a cancellation, or a reset, of this process is on its way, or the denial arrives after a
/// reset.
#[tokio::test]
async fn denial_beside_a_change_is_not_kept() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let policy = Arc::new(Policy::new("user").quota(Quota::per_hour(1)));
    for key in ["cancelled", "reset", "late"] {
        let log = || LogId::new(policy.clone(), key);
        let check = || Check::new([log()]);
        let first = check();
        assert!(store.admit(&first).await.unwrap().admitted);
        if key == "late" {
            let calls = redis.call_count("evalsha").await;
            let mut late = task::spawn(store.admit(&check()));
            assert_pending!(late.poll());
            let is_denied = async || redis.call_count("evalsha").await > calls;
            eventually("Redis has denied it", is_denied).await;
            store.reset(&log()).await.unwrap();
            assert!(!late.await.unwrap().admitted);
        } else if key == "reset" {
            let change = store.reset(&log());
            assert!(!store.admit(&check()).await.unwrap().admitted);
            change.await.unwrap();
        } else {
            let change = store.settle(&first, 0);
            assert!(!store.admit(&check()).await.unwrap().admitted);
            assert!(change.await.unwrap());
        }
        assert!(store.admit(&check()).await.unwrap().admitted, "{key}");
    }
}

/// A limiter asks for no resets, and a layer that shares its log shows them.
#[tokio::test]
async fn denial_without_resets_is_not_repeated_to_who_wants_them() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let log = LogId::new(Arc::new(Policy::new("user").quota(Quota::per_hour(1))), "alice");
    let mut check = Check::new([log.clone()]);
    assert!(store.admit(&check).await.unwrap().admitted);
    for wants_reset in [false, true, true, false] {
        check = Check::new([log.clone()]);
        check.wants_reset = wants_reset;
        let denied = store.admit(&check).await.unwrap();
        let reset = denied.logs()[0].quotas()[0].reset();
        assert!(
            !denied.admitted && (!wants_reset || reset > Duration::from_secs(3_500)),
            "{reset:?}"
        );
    }
}
