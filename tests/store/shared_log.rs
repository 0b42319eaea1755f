//! What Redis keeps of a log that policies with different windows share.

use std::sync::Arc;
use std::time::Duration;

use test_support::Redis;
use tokio::time::sleep;
use tower_sliding_window::store::{Admission, Check, DecidedBy, LogId, LogSnapshot, Store};
use tower_sliding_window::{Admitted, Decision, Limiter, Policy, RedisStore};

const LOG: &str = "tsw:{=alice}:user";
/// Checked by `admit.lua` and by `admit_all.lua`.
const SHORT: [&str; 2] = ["3/1s", "3/900ms,3/1s"];
const LONG: &str = "9/60s";

fn policy(quotas: &str) -> Policy {
    quotas.parse::<Policy>().unwrap().named("user")
}

async fn admit(store: &RedisStore, quotas: &str) -> Admitted {
    match Limiter::new(policy(quotas), store.clone()).check("alice").await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

async fn cancel(store: &RedisStore, quotas: &str, admitted: &Admitted) {
    Limiter::new(policy(quotas), store.clone()).cancel(admitted).await.unwrap();
}

async fn ttl_ms(redis: &Redis) -> i64 {
    redis.run(&["PTTL", LOG]).await
}

#[tokio::test]
async fn shorter_window_does_not_shorten_the_ttl() {
    let redis = Redis::start().await;
    for short in SHORT {
        let store = redis.store_without_deny_cache().await;
        admit(&store, LONG).await;
        sleep(Duration::from_millis(300)).await;
        admit(&store, short).await;
        let ttl_ms = ttl_ms(&redis).await;
        assert!((60_800..=61_001).contains(&ttl_ms), "{short}: {ttl_ms}");
        assert_eq!(redis.entries(LOG).await, 4, "two admissions and two marks");
        admit(&store, LONG).await;
        assert_eq!(redis.entries(LOG).await, 3, "the longer window needs no mark");
        redis.run::<i64>(&["DEL", LOG]).await;
    }
}

#[tokio::test]
async fn restored_admission_does_not_shorten_the_ttl() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    admit(&store, LONG).await;
    sleep(Duration::from_millis(1_500)).await;
    let log = LogId::new(Arc::new(policy(SHORT[0])), "alice");
    let id = Check::new([log.clone()]).id;
    let known = LogSnapshot::new(vec![Admission::new(id, 1, Duration::ZERO)]);
    store.restore(&log, &known).await.unwrap();
    assert_eq!(redis.entries(LOG).await, 2, "the longer window needs the first one");
    let ttl_ms = ttl_ms(&redis).await;
    assert!((60_500..=61_000).contains(&ttl_ms), "{ttl_ms}");
}

#[tokio::test]
async fn cancelled_admission_does_not_lengthen_the_ttl() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    admit(&store, LONG).await;
    sleep(Duration::from_millis(500)).await;
    let cancelled = admit(&store, LONG).await;
    cancel(&store, LONG, &cancelled).await;
    let ttl_ms = ttl_ms(&redis).await;
    assert!((59_000..=60_500).contains(&ttl_ms), "{ttl_ms}");
    admit(&store, LONG).await;
    assert_eq!(redis.entries(LOG).await, 2, "no sign of a longer window");
}

#[tokio::test]
async fn log_without_admissions_is_gone() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    let admitted = [(LONG, admit(&store, LONG).await), (SHORT[0], admit(&store, SHORT[0]).await)];
    for (quotas, admitted) in &admitted {
        cancel(&store, quotas, admitted).await;
    }
    assert_eq!(redis.run::<i64>(&["EXISTS", LOG]).await, 0);
}

#[tokio::test]
async fn explanation_has_admissions_only() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    admit(&store, LONG).await;
    admit(&store, SHORT[0]).await;
    let limiter = Limiter::new(policy(SHORT[0]), store);
    let explanation = limiter.explain("alice").await.unwrap();
    assert_eq!(explanation.decided_by, DecidedBy::Store);
    let quota = &explanation.quotas[0];
    assert_eq!((quota.taken, quota.waits_for), (2, None));
}
