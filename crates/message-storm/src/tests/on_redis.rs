//! On a real Redis: between processes, in what is kept there, and when that fails.

use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::recorder::RecordedMetrics;
use test_support::{Cluster, Redis, patient, patient_store};
use tokio::task::JoinSet;
use tower_sliding_window::{RedisStore, StoreError};

use super::{Watched, rule};
use crate::{StormDetector, StormEvent};

const GROUPS: usize = 8;
const MESSAGES: u32 = 120;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_one_start_and_end() {
    let redis = Redis::start().await;
    let (mut processes, mut messages) = (Vec::new(), JoinSet::new());
    for number in 0..3 {
        let process = Watched::on_redis("50/5s", &patient_store(redis.url()).await);
        // Each message comes to two processes.
        for id in (0..MESSAGES).filter(|id| id % 3 != number) {
            for group in 0..GROUPS {
                let (detector, group) = (process.detector.clone(), format!("group-{group}"));
                messages.spawn(async move { detector.record(group, id).await.unwrap() });
            }
        }
        processes.push(process);
    }
    messages.join_all().await;
    let mut reported = Vec::new();
    for process in processes {
        process.detector.settled().await;
        reported.extend(process.events.lock().unwrap().iter().map(|event| {
            let group = String::from_utf8_lossy(event.group().as_bytes()).into_owned();
            match event {
                StormEvent::Started { count, .. } => (group, "start", *count),
                StormEvent::Ended { peak, .. } => (group, "end", *peak),
            }
        }));
    }
    reported.sort();
    let expected = (0..GROUPS).map(|group| format!("group-{group}")).flat_map(|group| {
        // Each message counts once.
        [(group.clone(), "end", MESSAGES), (group, "start", 51)]
    });
    assert_eq!(reported, expected.collect::<Vec<_>>());
}

/// As in process.
#[tokio::test]
async fn panic_of_the_hook_is_that_of_the_call() {
    let redis = Redis::start().await;
    let detector = StormDetector::on_redis(rule("1/1h"), &redis.store().await).unwrap();
    let detector = detector.on_event(|_| panic!("a bug of the application"));
    detector.record("lobby", "1").await.unwrap();
    let starts = tokio::spawn(async move { detector.record("lobby", "2").await.map(|_| ()) });
    assert!(starts.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn another_process_reports_the_end() {
    let redis = Redis::start().await;
    let two = Watched::on_redis("10/1s", &redis.store().await);
    {
        let one = Watched::on_redis("10/1s", &redis.store().await);
        one.record("lobby", 0..11).await;
        assert_eq!(one.starts(), [true]);
        two.record("lobby", 11..12).await;
    }
    assert_eq!(two.all_starts().await, [false]);
}

#[tokio::test]
async fn every_key_expires_and_keeps_to_the_cap() {
    let redis = Redis::start().await;
    let rule = rule("10/60s").cap(20).named("chat");
    // No more rights than SECURITY.md gives.
    let url = make_user(&redis, May::DoAll).await;
    let store = patient().prefix("limiter").connect(url).await.unwrap();
    let detector = StormDetector::on_redis(rule, &store).unwrap();
    for id in 0..30 {
        let reading = detector.record("a}b", id.to_string()).await.unwrap();
        assert_eq!(reading.count, (id + 1).min(20));
        assert_eq!(reading.is_saturated, id >= 19);
        assert_eq!(reading.storm.is_some(), id >= 10);
    }
    let storm = detector.peek("a}b").await.unwrap().storm.unwrap();
    assert_eq!(storm.peak, 20);
    // To look leaves nothing: see the keys.
    assert_eq!(detector.peek("other").await.unwrap().count, 0);
    let of_group = ["log", "state"].map(|part| format!("limiter:{{=a%7Db}}:chat:storm:{part}"));
    assert_eq!(redis.keys().await, of_group);
    assert_eq!(redis.entries(&of_group[0]).await, 20);
    let most = 24 * 3_600_000 + 61_000;
    for key in &of_group {
        let ttl: i64 = redis.run(&["PTTL", key]).await;
        assert!((most - 30_000..=most).contains(&ttl), "{key}: {ttl}");
    }
    nothing_was_refused(&redis).await;
}

#[tokio::test]
async fn cluster_keeps_each_group_on_one_server() {
    let cluster = Cluster::start().await;
    let watched = Watched::on_redis("10/2s", &patient_store(cluster.servers()).await);
    for group in 0..20 {
        watched.record(&format!("group-{group}"), 0..11).await;
    }
    let reported = watched.all_starts().await;
    let starts = reported.iter().filter(|is_start| **is_start).count();
    assert_eq!((starts, reported.len() - starts), (20, 20));
}

#[tokio::test]
async fn outage_is_an_error_and_storm_ends_later() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let mut redis = Redis::start_durable().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let watched = Watched::on_redis("10/2s", &store);
    watched.record("lobby", 0..11).await;
    redis.kill();
    for id in 11..100 {
        let error = watched.detector.record("lobby", id.to_string()).await.unwrap_err();
        assert!(!error.to_string().contains("lobby"), "{error}");
    }
    let error = watched.detector.record("lobby", "more").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable), "{error}");
    assert_ne!(recorded.count("sliding_window_store_errors_total{kind=unavailable}"), 0);
    redis.start_again();
    assert_eq!(watched.all_starts().await, [true, false], "the end that no message causes");
}
