//! Timelines on which designs known to be wrong decide wrongly, and the right decisions. Time is paused.

use crate::*;

struct Timeline {
    /// What the wrong design does.
    wrong: &'static str,
    quota: Quota,
    /// When the requests come, in milliseconds.
    at_ms: Vec<u64>,
    is_admitted: Vec<bool>,
}

#[tokio::test(start_paused = true)]
async fn no_wrong_design_decides() {
    let minute = 60_000;
    let two_in_ten_minutes = Quota::new(2, Duration::from_secs(600));
    for Timeline { wrong, quota, at_ms, is_admitted } in [
        Timeline {
            wrong: "a fixed window admits a hundred at 00:59 and a hundred more at 01:01",
            quota: Quota::per_minute(100),
            at_ms: [[59_000; 100], [61_000; 100]].concat(),
            is_admitted: [[true; 100], [false; 100]].concat(),
        },
        Timeline {
            wrong: "a counter whose TTL is set once forgets the request before it expires",
            quota: two_in_ten_minutes,
            at_ms: [0, 7, 11, 12].map(|it| it * minute).into(),
            is_admitted: vec![true, true, true, false],
        },
        Timeline {
            wrong: "a counter whose TTL each request renews never forgets the first",
            quota: two_in_ten_minutes,
            at_ms: [0, 7, 11].map(|it| it * minute).into(),
            is_admitted: vec![true, true, true],
        },
        Timeline {
            wrong: "a set of timestamps takes requests of one instant for one",
            quota: Quota::per_minute(2),
            at_ms: vec![0; 4],
            is_admitted: vec![true, true, false, false],
        },
        Timeline {
            wrong: "scores in whole seconds admit the last two within 0.15 s",
            quota: Quota::per_second(1),
            at_ms: vec![0, 900, 1_850, 2_000],
            is_admitted: vec![true, false, true, false],
        },
        Timeline {
            wrong: "a log that counts denials locks out a client that goes on",
            quota: Quota::per_minute(5),
            at_ms: (0..130).map(|second| second * 1_000).collect(),
            is_admitted: (0..130).map(|second| second % 60 < 5).collect(),
        },
    ] {
        let (limiter, start) = (Limiter::new(quota, MemoryStore::new()), Instant::now());
        let mut decided = Vec::new();
        for at_ms in at_ms {
            advance(Duration::from_millis(at_ms) - start.elapsed()).await;
            decided.push(admit(&limiter, "receiver").await);
        }
        assert_eq!(decided, is_admitted, "{wrong}");
    }
}
