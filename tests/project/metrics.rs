//! The guide lists the metrics. The metrics of a full store and of one in an outage, whose gauges are those of all
//! stores of a process.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use test_support::recorder::RecordedMetrics;
use test_support::warnings::Warnings;
use test_support::{Redis, eventually};
use tower_sliding_window::{DecidedBy, Limiter, MemoryStore, Quota};
use uuid::Uuid;

use crate::{files, root};

/// Returns how many warnings there are, all of them about an in-process store.
fn of_memory(warnings: &Warnings) -> usize {
    let lines = warnings.lines();
    assert!(lines.iter().all(|line| line.contains("in-process store")), "{lines:?}");
    lines.len()
}

/// Fills a store whose logs run out after a minute up to so many.
async fn fill(store: &MemoryStore, logs: usize) {
    let limiter = Limiter::new(Quota::per_minute(1), store.clone());
    while store.len() < logs {
        let _ = limiter.check(Uuid::new_v4().to_string()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn filling_store_warns_at_80_percent_and_counts_its_refusals() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let warnings = Warnings::listen();
    let nearly_full = || recorded.gauge("sliding_window_memory_nearly_full{}");
    let refusals = || recorded.count("sliding_window_memory_full_total{}");
    let store = MemoryStore::with_capacity(10);
    fill(&store, 7).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (0.0, 0));
    let limiter = Limiter::new(Quota::per_minute(1), store.clone());
    fill(&store, 8).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 1));
    fill(&store, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 1), "once, however full it gets");
    assert_eq!(refusals(), 0);
    for key in 0..5 {
        limiter.check(key).await.unwrap_err();
    }
    assert_eq!(refusals(), 5);

    let other = MemoryStore::with_capacity(10);
    fill(&other, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (2.0, 2), "each store counts");
    drop(other);
    assert_eq!(nearly_full(), 1.0, "a store that is gone is not full");

    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(limiter.check(0).await.unwrap().is_admitted(), "there is room again");
    assert_eq!((nearly_full(), of_memory(&warnings), refusals()), (0.0, 2, 5));
    fill(&store, 10).await;
    assert_eq!((nearly_full(), of_memory(&warnings)), (1.0, 3), "and it is filled again");
    drop((limiter, store));

    // After a flood no new keys come.
    let store = MemoryStore::with_capacity(10);
    fill(&store, 9).await;
    tokio::time::advance(Duration::from_secs(59)).await;
    let often = Limiter::new(Quota::per_day(1), store.clone());
    let _ = often.check("bob").await.unwrap();
    assert_eq!((nearly_full(), store.len()), (1.0, 10));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!often.check("bob").await.unwrap().is_admitted());
    assert_eq!((nearly_full(), store.len()), (0.0, 1), "a denial sees that they have expired");
}

#[tokio::test]
async fn store_is_available_while_all_stores_of_the_process_are() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let warnings = Warnings::listen();
    let mut servers = [Redis::start().await, Redis::start().await];
    let mut limiters = Vec::new();
    for server in &servers {
        limiters.push(Limiter::new(Quota::per_hour(1_000), server.store().await));
    }
    assert_eq!(recorded.available(), 1.0);
    assert!(recorded.descriptions().contains_key("sliding_window_store_available"), "at once");

    servers.iter_mut().for_each(Redis::kill);
    eventually("both are missed", async || {
        for limiter in &limiters {
            let _ = limiter.check("alice").await.unwrap();
        }
        warnings.lines().len() >= 2
    })
    .await;
    servers[1].start_again();
    eventually("the second one is back", async || {
        limiters[1].check("alice").await.unwrap().decided_by() == DecidedBy::Store
    })
    .await;
    assert_eq!(recorded.available(), 0.0, "the first one is not");
    servers[0].start_again();
    eventually("both are back", async || recorded.available() == 1.0).await;
}

#[test]
fn documentation_lists_every_metric() {
    let source = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        words.filter(|it| it.starts_with("sliding_window_")).map(str::to_owned).collect()
    };
    let listed = names(&source("src/docs/watching.md"));
    let files = files(&root().join("src/telemetry"), "rs").into_iter();
    let reporting = files.filter(|it| !it.ends_with("describe.rs"));
    let reporting = reporting.map(|it| fs::read_to_string(it).unwrap());
    let reporting: String = reporting.chain([source("src/telemetry.rs")]).collect();
    assert_eq!(listed, names(&reporting));
    assert_eq!(listed, names(&source("src/telemetry/describe.rs")));
}
