//! In process: storms end by themselves, memory is bounded, and rules are checked.

use std::sync::Arc;
use std::time::Duration;

use test_support::eventually;
use test_support::recorder::RecordedMetrics;
use tokio::runtime::Handle;
use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::{Quota, StoreError};

use super::{Watched, in_process, rule};
use crate::check::Check;
use crate::detector::MOST_TASKS;
use crate::{StormDetector, StormEvent, StormRule};

#[tokio::test(start_paused = true)]
async fn silent_storm_ends_on_time() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let Watched { detector, events } = Watched::in_process("10/60s");
    let start = Instant::now();
    for id in 0..20_u32 {
        detector.record("lobby", id).await.unwrap();
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(detector.watched(), 1);
    let storms = |event: &str| {
        recorded.count(&format!("sliding_window_storms_total{{name=default,event={event}}}"))
    };
    assert_eq!((storms("start"), storms("end")), (1, 0));
    let storm = detector.peek("lobby").await.unwrap().storm.unwrap();
    assert_eq!((storm.lasted, storm.peak), (Duration::from_secs(10), 20));
    detector.settled().await;
    // Below five when the fifth newest has left, which came at second 15.
    assert_eq!(start.elapsed(), Duration::from_secs(75));
    assert_eq!(detector.watched(), 0);
    assert_eq!((storms("start"), storms("end")), (1, 1));
    let events = events.lock().unwrap();
    let [StormEvent::Started { count: 11, .. }, StormEvent::Ended { peak: 20, lasted, .. }] =
        &events[..]
    else {
        panic!("a start and an end: {events:?}");
    };
    assert_eq!(*lasted, Duration::from_secs(75 - 10));
}

#[tokio::test(start_paused = true)]
async fn tasks_are_bounded_and_repeated_calls_take_none_of_the_storms() {
    let detector = in_process("1/10s");
    for _ in 0..=MOST_TASKS {
        detector.0.check_later(Check::new("other".into(), None), Duration::from_secs(60), None);
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), MOST_TASKS);
    for group in 0..=MOST_TASKS {
        for id in ["1", "2"] {
            detector.record(group.to_string(), id).await.unwrap();
        }
    }
    assert_eq!(detector.watched(), MOST_TASKS);
    detector.settled().await;
    let last = detector.record(MOST_TASKS.to_string(), "3").await.unwrap();
    assert!(matches!(last.events[..], [StormEvent::Ended { .. }]), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_detector_stops_looking() {
    let watched = Watched::in_process("1/10s");
    watched.record("lobby", 0..2).await;
    // The task begins to wait for the time of its recheck.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let metrics = Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 1);
    let Watched { detector, events } = watched;
    drop(detector);
    // The hook holds the events.
    let is_gone = async || Arc::strong_count(&events) == 1 && metrics.num_alive_tasks() == 0;
    eventually("the detector is gone", is_gone).await;
    assert_eq!(events.lock().unwrap().len(), 1);
}

#[test]
fn storm_ends_in_another_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let watched = Watched::in_process("1/1s");
    // The tasks end with this runtime.
    runtime().block_on(watched.record("lobby", 0..2));
    let starts = runtime().block_on(async {
        assert!(watched.detector.peek("lobby").await.unwrap().storm.is_some());
        watched.all_starts().await
    });
    assert_eq!(starts, [true, false]);
}

#[tokio::test(start_paused = true)]
async fn groups_and_messages_have_a_capacity() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    // Twenty groups, and their messages.
    let detector = in_process("10/60s").capacity(2 * 20 + 500);
    let fill = async || {
        for number in 0..10_000_u32 {
            if let Err(error) = detector.record((number % 20).to_string(), number).await {
                assert!(matches!(error, StoreError::Full { capacity: 540 }), "{error}");
                return number;
            }
        }
        panic!("the detector takes everything");
    };
    assert_eq!(fill().await, 500);
    assert_eq!(recorded.count("sliding_window_store_errors_total{kind=full}"), 1);
    assert_eq!(detector.watched(), 20, "each group is in a storm");
    let known = detector.record("0", 0).await.unwrap();
    assert!(known.storm.is_some(), "a known message needs no room");
    assert_eq!(detector.peek("0").await.unwrap().count, 25, "and to look needs none");
    detector.settled().await;
    assert!(detector.peek("0").await.unwrap().storm.is_none(), "storms have ended");
    assert_eq!(fill().await, 500, "what is over makes room");

    sleep(Duration::from_secs(30)).await;
    for group in 20..30 {
        detector.record(group.to_string(), "1").await.unwrap_err();
    }
    // Two are too few for a group more.
    let detector = detector.capacity(540 + 3 * 10 + 2);
    for group in 20..30 {
        detector.record(group.to_string(), "1").await.unwrap();
    }
    let error = detector.record("30", "1").await.unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 572 }), "{error}");
    assert_eq!(detector.peek("30").await.unwrap().count, 0);
    detector.settled().await;
    assert_eq!(detector.record("30", "1").await.unwrap().count, 1, "twenty groups are over");
    assert_eq!(detector.peek("29").await.unwrap().count, 1, "and this one is not");

    let full = StormDetector::in_process(rule("1/60s").cap(2)).unwrap().capacity(2 + 2);
    for id in ["1", "2", "3"] {
        full.record("0", id).await.expect("it displaces another message of its group");
    }
}

/// To sweep takes as long as there are groups.
#[tokio::test(start_paused = true)]
async fn full_table_is_swept_ten_times_a_second() {
    let (detector, tick) = (in_process("5/10s").capacity(3 * 3), Duration::from_millis(50));
    let is_taken = async |group: &str| detector.record(group, "1").await.is_ok();
    for group in ["1", "2", "3"] {
        assert!(is_taken(group).await);
        sleep(tick).await;
    }
    sleep(Duration::from_secs(10) - 3 * tick).await;
    assert!(is_taken("4").await, "the first has left");
    sleep(tick).await;
    assert!(!is_taken("5").await, "the second has left, and the table was swept before");
    sleep(tick).await;
    assert!(is_taken("5").await);
}

#[tokio::test]
async fn debug_shows_no_group_or_message() {
    let detector = in_process("1/60s");
    detector.record("lobby", "secret").await.unwrap();
    let reading = detector.record("lobby", "secret too").await.unwrap();
    let printed = format!("{reading:?} {:?} {detector:?}", reading.events);
    assert_eq!(reading.events.len(), 1);
    assert!(!printed.contains("lobby") && !printed.contains("secret"), "{printed}");
}

#[test]
fn errors_name_the_invalid_part_of_a_rule() {
    let per_minute = |limit| StormRule::new(Quota::per_minute(limit));
    let ten = || per_minute(10);
    for (rule, part) in [
        (ten().named("a:b"), "\"a:b\" is not a name"),
        (ten().named(""), "\"\" is not a name"),
        (ten().named("x".repeat(65)), "1 to 64 characters"),
        (ten().ends_below(0), "can't end below 0"),
        (ten().ends_below(11), "to the threshold of 10"),
        (ten().cap(10), "cap of 10 must be above the threshold of 10"),
        (ten().cap(1_000_001), "at most 1000000"),
        (per_minute(1_000_000), "the threshold of 1000000 must be below 1000000"),
    ] {
        let error = StormDetector::in_process(rule).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for limit in [1, 2, 3, 99, 100, 101, 1_000, 99_999, 999_999] {
        assert!(StormDetector::in_process(Quota::per_minute(limit)).is_ok(), "{limit}");
        let extreme = per_minute(limit).ends_below(limit).cap(limit + 1).named("x".repeat(64));
        assert!(StormDetector::in_process(extreme).is_ok(), "{limit}");
    }
}
