//! What the guide says of Redis's memory, held against a real server.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

mod support;

use support::Redis;
use tower_sliding_window::{Limiter, Policy, Quota};

#[tokio::test]
async fn past_128_entries_a_log_takes_about_four_times_as_much_an_entry() {
    let redis = Redis::start().await;
    let policy = Policy::new("user").quota(Quota::per_hour(1000));
    let limiter = Limiter::new(policy, redis.store().await);
    let (mut entries, mut bytes) = (0, Vec::new());
    for count in [100, 128, 129, 200, 1000] {
        while entries < count {
            assert!(limiter.check("alice").await.unwrap().is_admitted());
            entries += 1;
        }
        let key = "tsw:{=alice}:user";
        let used: f64 = redis.run(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).await;
        let encoding: String = redis.run(&["OBJECT", "ENCODING", key]).await;
        assert_eq!(encoding == "skiplist", count > 128, "{count} entries: {encoding}");
        bytes.push(used);
    }
    let [hundred, most_compact, least_skiplist, two_hundred, thousand] = bytes[..] else {
        panic!("five logs were measured");
    };
    let about = |ratio: f64, value: f64| (value * 0.75..value * 1.25).contains(&ratio);
    assert!(about(least_skiplist / 129.0 / (most_compact / 128.0), 4.0), "{bytes:?}");
    assert!(about(two_hundred / hundred, 8.0), "{bytes:?}");
    assert!(about(two_hundred, 25_000.0) && about(thousand, 120_000.0), "{bytes:?}");
}
