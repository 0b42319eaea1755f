//! Designs known to be wrong, on a timeline that shows it, and the right decisions beside each. Time
//! is paused.

use crate::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Says which of the requests at these times pass: by the wrong design, and by ours.
async fn both(
    quota: Quota,
    at: &[Duration],
    wrong_design: impl FnMut(Duration) -> bool,
) -> [Vec<bool>; 2] {
    let limiter = Limiter::new(quota, MemoryStore::new());
    let start = Instant::now();
    let mut ours = Vec::new();
    for at in at {
        advance(*at - start.elapsed()).await;
        ours.push(admit(&limiter, "receiver").await);
    }
    [at.iter().copied().map(wrong_design).collect(), ours]
}

fn minutes<const N: usize>(at: [u32; N]) -> [Duration; N] {
    at.map(|minute| minute * MINUTE)
}

#[tokio::test(start_paused = true)]
async fn fixed_window_admits_twice_the_limit() {
    // A hundred requests at 00:59 and a hundred more at 01:01.
    let at = [59, 61].map(|second| [Duration::from_secs(second); 100]).concat();
    let mut counters = HashMap::new();
    let [fixed_window, ours] = both(Quota::per_minute(100), &at, |at| {
        let count = counters.entry(at.as_secs() / 60).or_insert(0);
        *count += 1;
        *count <= 100
    })
    .await;
    assert_eq!(fixed_window, [true; 200], "200 within two seconds");
    assert_eq!(ours, [[true; 100], [false; 100]].concat());
}

#[tokio::test(start_paused = true)]
async fn fixed_ttl_counter_forgets_recent_requests() {
    let (limit, window, at) = (2, 10 * MINUTE, minutes([0, 7, 11, 12]));
    let (mut count, mut expires) = (0, Duration::ZERO);
    let [set_if_absent, ours] = both(Quota::new(limit, window), &at, |at| {
        if at >= expires {
            (count, expires) = (0, at + window);
        }
        count += 1;
        count <= limit
    })
    .await;
    assert_eq!(set_if_absent, [true; 4], "three from 7 to 12 min");
    assert_eq!(ours, [true, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn renewed_ttl_counter_never_forgets() {
    let (limit, window, at) = (2, 10 * MINUTE, minutes([0, 7, 11]));
    let (mut count, mut expires) = (0, Duration::ZERO);
    let [renewing, ours] = both(Quota::new(limit, window), &at, |at| {
        if at >= expires {
            count = 0;
        }
        let passes = count < limit;
        if passes {
            (count, expires) = (count + 1, at + window);
        }
        passes
    })
    .await;
    assert_eq!(renewing, [true, true, false], "denied with one request in 10 min");
    assert_eq!(ours, [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn timestamp_member_merges_requests() {
    let mut members = BTreeSet::new();
    let [timestamps, ours] = both(Quota::per_minute(2), &[Duration::ZERO; 4], |at| {
        let passes = members.len() < 2;
        members.insert(at);
        passes
    })
    .await;
    assert_eq!(timestamps, [true; 4]);
    assert_eq!(ours, [true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn scores_in_seconds_blur_the_boundary() {
    let at = [0, 900, 1_850, 2_000].map(Duration::from_millis);
    let mut log: Vec<u64> = Vec::new();
    let [whole_seconds, ours] = both(Quota::per_second(1), &at, |at| {
        log.retain(|timestamp| at.as_secs() - timestamp < 1);
        let passes = log.is_empty();
        if passes {
            log.push(at.as_secs());
        }
        passes
    })
    .await;
    assert_eq!(whole_seconds, [true, false, true, true], "two within 0.15 s");
    assert_eq!(ours, [true, false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn counting_denials_locks_clients_out() {
    let at: Vec<_> = (0..130).map(Duration::from_secs).collect();
    let mut log: Vec<Duration> = Vec::new();
    let [counts_refused, ours] = both(Quota::per_minute(5), &at, |at| {
        log.retain(|timestamp| *timestamp + MINUTE > at);
        log.push(at);
        log.len() <= 5
    })
    .await;
    assert!(counts_refused.into_iter().eq((0..130).map(|second| second < 5)), "for ever");
    assert!(ours.into_iter().eq((0..130).map(|second| second % 60 < 5)), "five in each minute");
}
