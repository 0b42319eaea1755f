//! Designs of a storm detector known to be wrong, and the right decisions beside each. Time is
//! paused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, advance};
use tower_sliding_window::storm::StormRule;
use tower_sliding_window::{Limiter, MemoryStore, Quota, StormDetector};

const THRESHOLD: Quota = Quota::per_minute(100);

fn detector() -> StormDetector {
    StormDetector::new(THRESHOLD, MemoryStore::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn timestamp_member_merges_messages() {
    // A timestamp as the member of the set: 150 messages, ten in each millisecond.
    let mut wrong = BTreeSet::new();
    let (detector, start, mut starts) = (detector(), Instant::now(), 0);
    for id in 0..150_u32 {
        wrong.insert(start.elapsed().as_millis());
        let reading = detector.record("lobby", id.to_be_bytes()).await.unwrap();
        starts += reading.events().len();
        if id % 10 == 9 {
            advance(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(wrong.len(), 15, "the wrong design shows its fault: far from a storm");
    assert_eq!((detector.look("lobby").await.unwrap().count(), starts), (150, 1));
}

#[tokio::test(start_paused = true)]
async fn random_member_counts_a_message_twice() {
    // A random member for each delivery, as a limiter has it.
    let mut wrong = 0;
    let detector = detector();
    for delivery in 0..120_u32 {
        wrong += 1;
        let reading = detector.record("lobby", (delivery / 2).to_be_bytes()).await.unwrap();
        assert!(reading.events().is_empty());
    }
    assert!(wrong > THRESHOLD.limit(), "the wrong design shows its fault: a storm of repetitions");
    assert_eq!(detector.look("lobby").await.unwrap().count(), 60);
}

#[tokio::test(start_paused = true)]
async fn limiter_cannot_count_above_its_limit() {
    let (limiter, detector) = (Limiter::new(THRESHOLD, MemoryStore::new()), detector());
    let mut wrong = 0;
    for id in 0..500_u32 {
        wrong += u32::from(limiter.check("lobby").await.unwrap().is_admitted());
        detector.record("lobby", id.to_be_bytes()).await.unwrap();
    }
    assert_eq!(wrong, 100, "the wrong design shows its fault: it stops counting at its limit");
    assert_eq!(detector.look("lobby").await.unwrap().count(), 500);
}

#[tokio::test(start_paused = true)]
async fn one_storm_around_the_threshold() {
    let (threshold, mut wrong, mut right) = (Quota::per_minute(98), 0, 0);
    let detector = StormDetector::new(threshold, MemoryStore::new()).unwrap();
    let mut above = false;
    // Two every 1.2 seconds: the window holds 100 after them, and 98 before the next.
    for id in 0..2_000_u32 {
        if id % 2 == 0 {
            advance(Duration::from_millis(1200)).await;
        }
        let before = detector.look("lobby").await.unwrap();
        let after = detector.record("lobby", id.to_be_bytes()).await.unwrap();
        right += before.events().len() + after.events().len();
        // One count for the start and for the end.
        for count in [before.count(), after.count()] {
            let is_above = count > threshold.limit();
            wrong += u32::from(is_above != above);
            above = is_above;
        }
    }
    assert!(wrong > 1_000, "the wrong design shows its fault: {wrong} alerts");
    assert_eq!(right, 1, "it starts, and goes on");
}

#[tokio::test(start_paused = true)]
async fn storm_across_a_minute_boundary_is_one() {
    // A counter for each minute by the clock.
    let (mut wrong, mut starts) = (BTreeMap::<u64, u32>::new(), 0);
    let (detector, start) = (detector(), Instant::now());
    advance(Duration::from_secs(59)).await;
    for id in 0..150_u32 {
        *wrong.entry(start.elapsed().as_secs() / 60).or_default() += 1;
        starts += detector.record("lobby", id.to_be_bytes()).await.unwrap().events().len();
        if id == 75 {
            advance(Duration::from_secs(2)).await;
        }
    }
    assert!(
        wrong.values().all(|count| *count <= 100),
        "the wrong design shows its fault: {wrong:?}"
    );
    assert_eq!(starts, 1);
}

#[tokio::test(start_paused = true)]
async fn storm_of_many_messages_is_one_alert() {
    let rule = StormRule::new(THRESHOLD);
    let detector = StormDetector::new(rule, MemoryStore::new()).unwrap();
    let (mut wrong, mut right) = (0, 0);
    for id in 0..900_u32 {
        let reading = detector.record("lobby", id.to_be_bytes()).await.unwrap();
        wrong += u32::from(reading.count() > THRESHOLD.limit());
        right += reading.events().len();
    }
    assert_eq!(wrong, 800, "the wrong design shows its fault: an alert for each message");
    assert_eq!(right, 1);
}
