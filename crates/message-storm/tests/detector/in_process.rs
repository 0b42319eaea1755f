//! In process: the hook delays no check, storms end by themselves, and memory is bounded.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use message_storm::{StormDetector, StormEvent};
use test_support::recorder::RecordedMetrics;
use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::StoreError;

use super::{Watched, rule};

fn detector(threshold: &str) -> StormDetector {
    StormDetector::in_process(rule(threshold))
}

/// Has a storm start in each of so many groups.
async fn storms(detector: &StormDetector, groups: std::ops::Range<usize>) {
    for group in groups {
        for id in ["1", "2"] {
            detector.record(group.to_string(), id).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_hook_delays_no_check_and_sheds_what_is_too_much() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let (let_go, wait) = mpsc::channel::<()>();
    let (wait, reported) = (Mutex::new(wait), Arc::new(AtomicUsize::new(0)));
    let heard = reported.clone();
    let rule = rule("1/10s").named("chat");
    let detector = StormDetector::in_process(rule).on_event(move |_| {
        let _ = wait.lock().unwrap().recv();
        heard.fetch_add(1, Ordering::SeqCst);
    });
    // Every call is answered although the hook has not returned once.
    storms(&detector, 0..51_000).await;
    assert_eq!(detector.watched(), 51_000);
    detector.settled().await;
    assert_eq!(reported.load(Ordering::SeqCst), 0);
    // Of the starts and ends 100,000 wait, and one may be with the hook.
    assert!((1_999..=2_000).contains(&detector.shed()), "{}", detector.shed());
    let storms = |event: &str| {
        recorded.count(&format!("sliding_window_storms_total{{name=chat,event={event}}}"))
    };
    assert_eq!((storms("start"), storms("end")), (51_000, 51_000));
    assert_eq!(recorded.count("sliding_window_storm_alerts_shed_total{}"), detector.shed());
    drop(let_go);
    detector.flush().await;
    assert_eq!(reported.load(Ordering::SeqCst) as u64, 102_000 - detector.shed());
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
    let Watched { detector, events } = Watched::in_process("10/60s");
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
    let one = Watched::in_process("10/60s").remind_every(Duration::from_secs(20));
    // A detector of its own, with the same groups.
    let two = Watched::new(one.detector.clone());
    let watched = [one, two];
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

#[tokio::test(start_paused = true)]
async fn storm_starts_when_the_cool_down_ends() {
    let rule = rule("10/60s").cool_down(Duration::from_secs(30));
    let detector = StormDetector::in_process(rule);
    let start = Instant::now();
    for id in 0..11_u32 {
        detector.record("lobby", id.to_be_bytes()).await.unwrap();
    }
    // Over at 60, and the cool-down at 90.
    sleep(Duration::from_secs(61)).await;
    for id in 100..120_u32 {
        assert!(detector.record("lobby", id.to_be_bytes()).await.unwrap().events.is_empty());
    }
    assert_eq!(detector.watched(), 1);
    sleep(Duration::from_secs(29)).await;
    assert!(detector.peek("lobby").await.unwrap().storm.is_some());
    detector.settled().await;
    assert_eq!(start.elapsed(), Duration::from_secs(121));
}

#[tokio::test(start_paused = true)]
async fn message_that_finds_the_end_stops_the_recheck() {
    let one = Watched::in_process("1/10s").remind_every(Duration::from_secs(6));
    let two = Watched::new(one.detector.clone());
    one.record("lobby", 0..2).await;
    // The task of one comes at 6 and 10 seconds, and is kept from both by the blocked runtime.
    advance(Duration::from_secs(10)).await;
    assert_eq!(one.detector.watched(), 1);
    one.record("lobby", 2..3).await;
    assert_eq!(one.detector.watched(), 0, "the message has found the end");
    one.detector.settled().await;
    assert_eq!((one.starts().await, two.starts().await), (vec![true, false], vec![]));
}

#[tokio::test(start_paused = true)]
async fn at_most_100_000_storms_are_watched() {
    let detector = detector("1/10s").capacity(200_000, 1_000_000);
    storms(&detector, 0..100_010).await;
    assert_eq!(detector.watched(), 100_000);
    detector.settled().await;
    let last = detector.record("100009", "3").await.unwrap();
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
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 1);
    let Watched { detector, events } = watched;
    drop(detector);
    // The hook holds the events until the thread has ended.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while Arc::strong_count(&events) > 1 || metrics.num_alive_tasks() > 0 {
        assert!(std::time::Instant::now() < deadline, "the detector is still there");
        tokio::task::yield_now().await;
    }
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
    let detector = detector("10/60s").capacity(30, 500);
    let fill = async || {
        for number in 0..10_000_u32 {
            let recorded = detector.record((number % 20).to_string(), number.to_string()).await;
            match recorded {
                Ok(_) => {}
                Err(StoreError::Full { capacity: 500 }) => return number,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the detector takes everything");
    };
    assert_eq!(fill().await, 500);
    assert_eq!(detector.watched(), 20, "each group is in a storm");
    let known = detector.record("0", "0").await.unwrap();
    assert!(known.is_repeated && known.storm.is_some(), "a known message needs no room");
    assert_eq!(detector.peek("0").await.unwrap().count, 25, "and to look needs none");
    detector.settled().await;
    assert!(detector.peek("0").await.unwrap().storm.is_none(), "storms have ended");
    assert_eq!(fill().await, 500, "what is over makes room");

    sleep(Duration::from_secs(30)).await;
    for group in 20..30 {
        detector.record(group.to_string(), "1").await.unwrap_err();
    }
    let detector = detector.capacity(30, 1_000);
    for group in 20..30 {
        detector.record(group.to_string(), "1").await.unwrap();
    }
    let error = detector.record("30", "1").await.unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 30 }), "{error}");
    assert_eq!(detector.peek("30").await.unwrap().count, 0);
    detector.settled().await;
    assert_eq!(detector.record("30", "1").await.unwrap().count, 1, "twenty groups are over");
    assert_eq!(detector.peek("29").await.unwrap().count, 1, "and this one is not");
}

#[tokio::test]
async fn a_profile_has_a_bounded_number_of_steps() {
    let detector = detector("10/60s");
    let error = async |step| detector.profile("lobby", step).await.unwrap_err().to_string();
    assert!(error(Duration::ZERO).await.contains("at least 1us"));
    assert!(error(Duration::from_nanos(999)).await.contains("at least 1us"));
    assert!(error(Duration::from_millis(59)).await.contains("1017 steps"));
    assert!(error(Duration::from_micros(1)).await.contains("at most 1000"));
    let finest = detector.profile("lobby", Duration::from_millis(60)).await.unwrap();
    assert_eq!(finest.counts, [0; 1000]);
}

#[tokio::test]
async fn debug_shows_no_group_or_message() {
    let watched = detector("1/60s");
    watched.record("lobby", "secret").await.unwrap();
    let reading = watched.record("lobby", "secret too").await.unwrap();
    let printed = format!("{reading:?} {:?} {watched:?}", reading.events);
    assert_eq!(reading.events.len(), 1);
    assert!(!printed.contains("lobby") && !printed.contains("secret"), "{printed}");
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
        starts += reading.events.len();
        if id % 10 == 9 {
            advance(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(wrong.len(), 15, "the wrong design counts too few for a storm");
    assert_eq!((detector.peek("lobby").await.unwrap().count, starts), (150, 1));
}
