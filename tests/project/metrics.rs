//! The metrics that the documentation lists, through an outage and back.

use std::collections::BTreeSet;
use std::time::Duration;

use test_support::recorder::RecordedMetrics;
use test_support::warnings::Warnings;
use test_support::{Redis, eventually};
use tower_sliding_window::{FailurePolicy, Limiter, MemoryStore, Policy, Quota, RedisStore};
use uuid::Uuid;

/// Returns how many warnings there are, all of them about an in-process store.
fn of_memory(warnings: &Warnings) -> usize {
    let lines = warnings.lines();
    assert!(lines.iter().all(|line| line.contains("in-process store")), "{lines:?}");
    lines.len()
}

#[tokio::test]
async fn outage_metrics_from_error_to_write_back() {
    let (recorded, _recorder) = RecordedMetrics::listen();

    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let policy = Policy::new("user").quota(Quota::per_hour(3));
    let local = Limiter::new(policy.clone(), store.clone());
    let open = local.clone().failure_policy(FailurePolicy::Open);
    let closed = local.clone().failure_policy(FailurePolicy::Closed);
    assert!(local.check("alice").await.unwrap().is_admitted());
    assert_eq!(recorded.available(), 1.0);
    let admitted = "sliding_window_decisions_total{policy=user,outcome=admitted}";
    assert_eq!(recorded.count(admitted), 1);

    redis.kill();
    for admitted in [true, true, false] {
        assert_eq!(local.check("alice").await.unwrap().is_admitted(), admitted);
    }
    let _ = open.check("alice").await.unwrap();
    closed.check("alice").await.unwrap_err();
    for (labels, count) in [
        ("local,outcome=admitted", 2),
        ("local,outcome=denied", 1),
        ("open,outcome=admitted", 1),
        ("closed,outcome=refused", 1),
    ] {
        let name = "sliding_window_fallback_decisions_total";
        assert_eq!(
            recorded.count(&format!("{name}{{failure_policy={labels}}}")),
            count,
            "{labels}"
        );
    }
    assert_eq!(recorded.count(admitted), 4, "with those of this process and of the open policy");
    assert_eq!(recorded.available(), 0.0);
    let errors = ["unreachable", "timeout", "disconnected", "unavailable"]
        .map(|it| recorded.count(&format!("sliding_window_store_errors_total{{kind={it}}}")));
    assert_eq!(errors.iter().sum::<u64>(), 5, "one a request: {errors:?}");

    redis.start_again();
    let written = || recorded.count("sliding_window_written_back_total{}");
    eventually("both are written back", async || written() >= 2).await;
    assert_eq!(recorded.available(), 1.0);
}

/// Held by each test that fills a store: the gauges are sums over all stores of the process.
static FILLING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Fills a store whose logs run out after a minute up to so many.
async fn fill(store: &MemoryStore, logs: usize) {
    let limiter = Limiter::new(Quota::per_minute(1), store.clone());
    while store.len() < logs {
        let _ = limiter.check(Uuid::new_v4().to_string()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn filling_store_warns_at_80_percent() {
    let _alone = FILLING.lock().await;
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (warnings, _subscriber) = Warnings::listen();
    let nearly_full = || recorded.gauge("sliding_window_memory_nearly_full{}");
    let store = MemoryStore::with_capacity(10);
    fill(&store, 7).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (0.0, 0));
    let limiter = Limiter::new(Quota::per_minute(1), store.clone());
    for _ in 0..100 {
        let decision = limiter.check("alice").await.unwrap();
        limiter.cancel(decision.admitted().unwrap()).await.unwrap();
    }
    assert_eq!(of_memory(&warnings), 1, "once while it is around 80 %");
    fill(&store, 8).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 1));
    fill(&store, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 1), "once, however full it gets");

    let other = MemoryStore::with_capacity(10);
    fill(&other, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (2.0, 2), "each store counts");
    drop(other);
    assert_eq!(nearly_full(), 1.0, "a store that is gone is not full");

    tokio::time::advance(Duration::from_secs(60)).await;
    let _ = limiter.check("alice").await.unwrap();
    assert_eq!((nearly_full(), of_memory(&warnings)), (0.0, 2), "there is room again");
    fill(&store, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 3), "and it is filled again");
}

#[tokio::test(start_paused = true)]
async fn a_full_store_counts_its_refusals() {
    let _alone = FILLING.lock().await;
    let (recorded, _recorder) = RecordedMetrics::listen();
    let full = || recorded.count("sliding_window_memory_full_total{}");
    let store = MemoryStore::with_capacity(10);
    fill(&store, 10).await;
    assert_eq!(full(), 0);
    let limiter = Limiter::new(Quota::per_minute(1), store);
    for key in 0..5 {
        limiter.check(key).await.unwrap_err();
    }
    assert_eq!(full(), 5);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(limiter.check(0).await.unwrap().is_admitted(), "room was made for this one");
    assert_eq!(full(), 5);
}

#[test]
fn documentation_lists_every_metric() {
    let source = |path: &str| std::fs::read_to_string(crate::root().join(path)).unwrap();
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        words.filter(|it| it.starts_with("sliding_window_")).map(str::to_owned).collect()
    };
    let listed: String = source("src/lib.rs").lines().filter(|it| it.starts_with("//!")).collect();
    let described = names(&source("src/telemetry/describe.rs"));
    let files = crate::files(&crate::root().join("src/telemetry"), "rs");
    let files = files.iter().filter(|it| !it.ends_with("describe.rs"));
    let reporting = files.map(|it| std::fs::read_to_string(it).unwrap());
    let reporting: String = reporting.chain([source("src/telemetry.rs")]).collect();
    assert_eq!(names(&listed), names(&reporting));
    assert_eq!(names(&listed), described);
}
