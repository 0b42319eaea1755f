//! What the guide says of Redis's memory, held against a real server.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

mod support;

use std::time::Duration;

use support::Redis;
use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor};
use tower_sliding_window::{Bans, Limiter, Policy, Quota, StormDetector};
use uuid::Uuid;

/// Says whether a value is a figure of the guide, give or take a quarter.
fn about(value: f64, figure: f64) -> bool {
    (figure * 0.75..figure * 1.25).contains(&value)
}

/// Returns what all keys take whose names hold a text, in bytes.
async fn memory(redis: &Redis, part: &str) -> f64 {
    let mut bytes = 0.0;
    for key in redis.run::<Vec<String>>(&["KEYS", &format!("*{part}*")]).await {
        bytes += redis.run::<f64>(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]).await;
    }
    bytes
}

/// Checks that the guide has a line with these texts in this order.
fn guide_says(texts: &[&str]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/which_tool.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let holds = |line: &str| {
        let mut rest = line;
        texts.iter().all(|text| match rest.split_once(text) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    };
    assert!(guide.lines().any(holds), "the guide does not say {texts:?}");
}

#[tokio::test]
async fn what_storms_take() {
    let redis = Redis::start().await;
    let detector = StormDetector::new(Quota::per_minute(100), redis.store().await).unwrap();
    let mut recorded = 0;
    for (count, said) in [(1, "168"), (100, "5,224"), (1000, "134,000")] {
        while recorded < count {
            detector.record("group-7", Uuid::new_v4().to_string()).await.unwrap();
            recorded += 1;
        }
        let bytes = memory(&redis, "storm:log").await;
        let figure: f64 = said.replace(',', "").parse().unwrap();
        assert!(about(bytes, figure), "{count} messages take {bytes} bytes");
        let rows = ["| 1 message |", "| 100 messages |", "| 1,000 messages, the default cap"];
        let row = rows[[1, 100, 1000].iter().position(|it| *it == count).unwrap()];
        guide_says(&[row, said]);
    }
    let state = memory(&redis, "storm:state").await;
    assert!(about(state, 220.0), "{state}");
    guide_says(&["storm takes 220 bytes more"]);
}

#[tokio::test]
async fn what_senders_and_bans_take() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let rule: Rule = "peers 9/5m mute 48h".parse().unwrap();
    let monitor = SpeechMonitor::new([rule], store.clone());
    for peer in 0..5 {
        let message = Message::from("alice").to(format!("stranger-{peer}")).text("hello");
        assert!(monitor.check(&message).await.unwrap().is_delivered());
    }
    let peers = memory(&redis, "speech:peers").await;
    assert!(about(peers, 200.0), "{peers}");
    guide_says(&["Five peers take 200 bytes"]);

    let penalty = "3/10m:1m,1h,24h".parse().unwrap();
    let policy = Policy::new("user").quota(Quota::per_minute(5)).penalty(penalty);
    Bans::new(policy, store).impose("bob", Duration::from_secs(60), "spam").await.unwrap();
    let ban = memory(&redis, "user:ban").await;
    assert!(about(ban, 120.0), "{ban}");
    guide_says(&["A ban takes 120 bytes"]);
}

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
    assert!(about(least_skiplist / 129.0 / (most_compact / 128.0), 4.0), "{bytes:?}");
    assert!(about(two_hundred / hundred, 8.0), "{bytes:?}");
    assert!(about(two_hundred, 25_000.0) && about(thousand, 120_000.0), "{bytes:?}");
}
