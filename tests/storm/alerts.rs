//! Storms in process: the hook delays no check, and storms end by themselves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::storm::{StormDetector, StormEvent};
use tower_sliding_window::{MemoryStore, StoreError};

use super::{Watched, rule};

fn detector(threshold: &str) -> StormDetector {
    StormDetector::new(rule(threshold), MemoryStore::new())
}

/// Has a storm start in each of so many groups.
async fn storms(detector: &StormDetector, groups: std::ops::Range<usize>) {
    for group in groups {
        for id in ["1", "2"] {
            detector.record(group.to_string(), id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn blocking_hook_delays_no_check() {
    let (let_go, wait) = mpsc::channel::<()>();
    let (wait, reported) = (Mutex::new(wait), Arc::new(AtomicUsize::new(0)));
    let heard = reported.clone();
    let detector = detector("1/1h").on_event(move |_| {
        let _ = wait.lock().unwrap().recv();
        heard.fetch_add(1, Ordering::SeqCst);
    });
    // Every one of these is answered although the hook has not returned once.
    storms(&detector, 0..101_000).await;
    assert_eq!(reported.load(Ordering::SeqCst), 0);
    // 100,000 wait, and one may be with the hook.
    assert!((999..=1_000).contains(&detector.shed()), "{}", detector.shed());
    drop(let_go);
    detector.flush().await;
    assert_eq!(reported.load(Ordering::SeqCst) as u64, 101_000 - detector.shed());
}

#[test]
fn stuck_hook_lets_the_runtime_end() {
    let (entered, at_hook) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let detector = detector("1/1h").on_event(move |_| {
            let _ = entered.send(());
            loop {
                std::thread::park();
            }
        });
        storms(&detector, 0..3).await;
    });
    at_hook.recv_timeout(Duration::from_secs(30)).expect("the hook is called");
    drop(runtime);
}

#[tokio::test]
async fn panicking_hook_gets_the_next_event() {
    let reported = Arc::new(AtomicUsize::new(0));
    let heard = reported.clone();
    let detector = detector("1/1h").on_event(move |event| {
        heard.fetch_add(1, Ordering::SeqCst);
        assert_ne!(event.group().as_bytes(), b"1", "a panic of the test's own");
    });
    storms(&detector, 0..3).await;
    detector.flush().await;
    assert_eq!((reported.load(Ordering::SeqCst), detector.panicked(), detector.shed()), (3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn silent_storm_ends_on_time() {
    let Watched { detector, events } = Watched::new("10/60s", MemoryStore::new());
    let start = Instant::now();
    for id in 0..20_u32 {
        detector.record("lobby", id.to_be_bytes()).await.unwrap();
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(detector.watched(), 1);
    detector.settled().await;
    // Below five when the fifth newest has left, which came at second 15.
    assert_eq!(start.elapsed(), Duration::from_secs(75));
    assert_eq!(detector.watched(), 0);
    detector.flush().await;
    let events = events.lock().unwrap();
    let [StormEvent::Started { count: 11, .. }, StormEvent::Ended { peak: 20, lasted, .. }] =
        &events[..]
    else {
        panic!("a start and an end: {events:?}");
    };
    assert_eq!(*lasted, Duration::from_secs(75 - 10));
}

#[tokio::test(start_paused = true)]
async fn silent_storm_is_reported_again() {
    let store = MemoryStore::new();
    // Two processes of one fleet.
    let watched = [(); 2].map(|()| {
        let Watched { detector, events } = Watched::new("10/60s", store.clone());
        Watched { detector: detector.remind_every(Duration::from_secs(20)), events }
    });
    for id in 0..12_u32 {
        watched[id as usize % 2].detector.record("lobby", id.to_be_bytes()).await.unwrap();
    }
    let mut seen = Vec::new();
    for Watched { detector, events } in &watched {
        detector.settled().await;
        detector.flush().await;
        seen.extend(events.lock().unwrap().iter().map(|event| match event {
            StormEvent::Started { .. } => (0, "start"),
            StormEvent::Ongoing { lasted, count: 12, peak: 12, .. } => (lasted.as_secs(), "on"),
            StormEvent::Ended { lasted, .. } => (lasted.as_secs(), "end"),
            other => panic!("{other:?}"),
        }));
    }
    seen.sort_unstable();
    // At 60 seconds it is over.
    assert_eq!(seen, [(0, "start"), (20, "on"), (40, "on"), (60, "end")]);
}

#[test]
fn a_reminder_needs_a_sensible_time() {
    for time in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
        let error = detector("1/1h").try_remind_every(time).unwrap_err().to_string();
        assert!(error.contains("at least a second"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn storm_starts_when_the_cool_down_ends() {
    let rule = rule("10/60s").cool_down(Duration::from_secs(30));
    let detector = StormDetector::new(rule, MemoryStore::new());
    let start = Instant::now();
    for id in 0..11_u32 {
        detector.record("lobby", id.to_be_bytes()).await.unwrap();
    }
    // Over at 60, and the cool-down at 90.
    sleep(Duration::from_secs(61)).await;
    for id in 100..120_u32 {
        assert!(detector.record("lobby", id.to_be_bytes()).await.unwrap().events().is_empty());
    }
    assert_eq!(detector.watched(), 1);
    sleep(Duration::from_secs(29)).await;
    assert!(detector.peek("lobby").await.unwrap().storm().is_some());
    detector.settled().await;
    assert_eq!(start.elapsed(), Duration::from_secs(121));
}

#[tokio::test(start_paused = true)]
async fn dropped_detector_stops_looking() {
    let watched = Watched::new("1/10s", MemoryStore::new());
    watched.record("lobby", 0..2).await;
    // The task begins to wait for the time of its recheck.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let Watched { detector, events } = watched;
    drop(detector);
    // The hook holds the events until the task and the thread have ended.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while Arc::strong_count(&events) > 1 {
        assert!(std::time::Instant::now() < deadline, "the detector is still there");
        tokio::task::yield_now().await;
    }
    assert_eq!(events.lock().unwrap().len(), 1);
}

#[test]
fn message_ends_a_storm_without_a_runtime() {
    let detector = detector("1/1ms");
    let record = |id: &str| tokio_test::block_on(detector.record("lobby", id)).unwrap();
    record("1");
    while record(&fastrand::u64(..).to_string()).storm().is_none() {}
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    // The end comes to one of these calls, or to the task of the runtime that this one began.
    while tokio_test::block_on(detector.peek("lobby")).unwrap().storm().is_some() {
        assert!(std::time::Instant::now() < deadline, "it does not end");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_take_no_more_bytes_than_they_may() {
    let store = MemoryStore::new().storm_bytes(100_000);
    let detector = StormDetector::new(rule("10/60s"), store.clone());
    let fill = async || {
        for number in 0..10_000_u32 {
            let id = format!("{number:0100}");
            let recorded = detector.record((number % 20).to_string(), id).await;
            assert!(store.storm_bytes_used() <= 100_000, "{}", store.storm_bytes_used());
            match recorded {
                Ok(_) => {}
                Err(StoreError::TooManyBytes { budget: 100_000 }) => return number,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the store takes everything");
    };
    let room = fill().await;
    assert!((200..800).contains(&room), "{room} messages");
    assert_eq!(detector.watched(), 20, "each group is in a storm");
    let known = detector.record("0", format!("{:0100}", 0)).await.unwrap();
    assert!(known.is_repeated() && known.storm().is_some(), "a known message needs no room");
    detector.settled().await;
    sleep(Duration::from_secs(60)).await;
    assert!(detector.peek("0").await.unwrap().storm().is_none());
    assert_eq!(fill().await, room, "what is over makes room");
}

/// A timestamp as the member of a sorted set is known to be wrong.
#[tokio::test(start_paused = true)]
async fn timestamp_member_merges_messages() {
    // 150 messages, ten in each millisecond.
    let mut wrong = BTreeSet::new();
    let (detector, start, mut starts) = (detector("100/60s"), Instant::now(), 0);
    for id in 0..150_u32 {
        wrong.insert(start.elapsed().as_millis());
        let reading = detector.record("lobby", id.to_be_bytes()).await.unwrap();
        starts += reading.events().len();
        if id % 10 == 9 {
            advance(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(wrong.len(), 15, "the wrong design counts too few for a storm");
    assert_eq!((detector.peek("lobby").await.unwrap().count(), starts), (150, 1));
}
