//! A storm is reported once, also if its reply is lost or its caller has hung up.

use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, patient_store};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_sliding_window::RedisStore;

use super::Watched;
use crate::StormEvent;

/// A detector behind a proxy, with five messages in the group.
struct Behind {
    redis: Redis,
    proxy: Proxy,
    watched: Watched,
}

impl Behind {
    async fn start(threshold: &str) -> Self {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        let watched = Watched::on_redis(threshold, &patient_store(proxy.url()).await);
        // Loads the script, so that a call is one request.
        watched.detector.peek("other").await.unwrap();
        watched.record("lobby", 0..5).await;
        Self { redis, proxy, watched }
    }

    /// Waits for this many events, and returns for each whether it is a start.
    async fn starts(&self, count: usize) -> Vec<bool> {
        eventually("the events come", async || self.watched.starts().len() >= count).await;
        self.watched.starts()
    }
}

#[tokio::test]
async fn lost_start_reply_is_reported_once() {
    for lost in [1, 2] {
        let behind = Behind::start("5/1h").await;
        behind.proxy.drop_replies(lost);
        let sixth = behind.watched.detector.record("lobby", "5").await;
        assert_eq!(behind.proxy.dropped(), lost);
        match sixth {
            Ok(sixth) => assert_eq!((lost, sixth.count, sixth.events.len()), (1, 6, 1)),
            Err(error) => assert!(lost == 2 && error.may_have_counted(), "{lost}: {error}"),
        }
        assert_eq!(behind.starts(1).await, [true]);
        // Delivered again, as a queue would: it is not reported again.
        let again = behind.watched.detector.record("lobby", "5").await.unwrap();
        assert_eq!((again.count, again.events.len()), (6, 0));
        behind.watched.record("lobby", 6..9).await;
        assert_eq!(behind.starts(1).await, [true], "{lost} lost");
        behind.redis.has_entries("tsw:{=lobby}:default:5/1h:storm:log", 9).await;
    }
}

/// A message that finds the storm over leaves a task alone that may have the event of its call.
#[tokio::test]
async fn end_is_not_lost_to_a_message_while_it_is_asked_for() {
    let behind = Behind::start("5/500ms").await;
    behind.watched.record("lobby", 5..6).await;
    assert_eq!(behind.starts(1).await, [true]);
    // The recheck and its repetition end the storm, and nobody hears of it.
    behind.proxy.drop_replies(2);
    eventually("the end is lost", async || behind.proxy.dropped() == 2).await;
    let is_over = async || {
        behind.watched.detector.peek("lobby").await.is_ok_and(|reading| {
            assert!(reading.events.is_empty(), "{reading:?}");
            reading.storm.is_none()
        })
    };
    eventually("another call finds it over", is_over).await;
    assert_eq!(behind.watched.all_starts().await, [true, false]);
}

/// The network holds the call and its repetition back for two seconds.
#[tokio::test]
async fn start_is_reported_if_the_call_arrives_late() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let watched = Watched::on_redis("5/1h", &RedisStore::connect(proxy.url()).await.unwrap());
    watched.record("lobby", 0..5).await;
    let before = redis.call_count("evalsha").await;
    proxy.set(Fault::Stall);
    let error = watched.detector.record("lobby", "5").await.unwrap_err();
    assert!(error.may_have_counted(), "{error}");
    proxy.set(Fault::Forget);
    sleep(Duration::from_secs(2)).await;
    assert_ne!(redis.call_count("evalsha").await, before, "it was asked for");
    assert!(watched.starts().is_empty(), "and is not there");
    proxy.set(Fault::None);
    eventually("it is reported", async || watched.starts() == [true]).await;
    // Two come late, and two looks are answered, of which one may be repeated.
    let calls = redis.call_count("evalsha").await - before;
    assert!(calls <= 5, "{calls}");
    watched.record("lobby", 5..9).await;
    assert_eq!(watched.starts(), [true]);
}

/// Some hang up while their call is under way, and some before its turn.
#[tokio::test]
async fn a_caller_that_hangs_up_costs_one_call_and_loses_no_event() {
    let Behind { redis, proxy, watched } = Behind::start("50/2s").await;
    let before = redis.call_count("evalsha").await;
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let mut callers = JoinSet::new();
    for id in 0..100_u32 {
        let detector = watched.detector.clone();
        callers.spawn(async move {
            let recorded = detector.record("busy", id.to_string());
            timeout(Duration::from_millis(20), recorded).await.is_err()
        });
    }
    assert_eq!(callers.join_all().await, [true; 100], "all have hung up");
    proxy.set(Fault::None);
    assert_eq!(watched.all_starts().await, [true, false]);
    let events = watched.events.lock().unwrap().clone();
    let [_, StormEvent::Ended { peak, .. }] = events[..] else { panic!("an end: {events:?}") };
    let calls = redis.call_count("evalsha").await - before;
    assert!(peak == 100 && calls <= 110, "{peak} messages in {calls} calls");
}
