//! What the guide says of the memory of Redis, measured on a real server.

use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor};
use tower_sliding_window::{Bans, Limiter, Policy, Quota, StormDetector};
use uuid::Uuid;

/// What the guide's figures are on one kind of server, in bytes where nothing else is said.
struct Figures {
    /// Logs of 1, 100 and 1,000 messages.
    storm_logs: [f64; 3],
    storm_state: f64,
    five_peers: f64,
    ban: f64,
    /// How many times as much an entry takes above 128 entries.
    dearer: f64,
    /// How many times as much 200 entries take as 100.
    twice_as_many: f64,
    log_of_200: f64,
    log_of_1000: f64,
}

/// The figures that the guide has, of Redis 6.2 to 8.0.
const REDIS: Figures = Figures {
    storm_logs: [168.0, 5_224.0, 134_000.0],
    storm_state: 220.0,
    five_peers: 200.0,
    ban: 120.0,
    dearer: 4.0,
    twice_as_many: 8.0,
    log_of_200: 25_000.0,
    log_of_1000: 120_000.0,
};

const VALKEY_8: Figures = Figures {
    storm_logs: [80.0, 5_140.0, 119_000.0],
    storm_state: 128.0,
    five_peers: 144.0,
    ban: 64.0,
    dearer: 3.3,
    twice_as_many: 6.7,
    log_of_200: 20_600.0,
    log_of_1000: 103_000.0,
};

const VALKEY_9: Figures = Figures {
    storm_logs: [144.0, 5_200.0, 104_000.0],
    storm_state: 192.0,
    five_peers: 192.0,
    ban: 96.0,
    dearer: 2.8,
    twice_as_many: 5.4,
    log_of_200: 17_000.0,
    log_of_1000: 86_000.0,
};

/// Returns the figures of the server that the test runs on.
async fn figures(redis: &Redis) -> &'static Figures {
    let info: String = redis.run(&["INFO", "server"]).await;
    let valkey = info.lines().find_map(|line| line.strip_prefix("valkey_version:"));
    match valkey.and_then(|version| version.split('.').next()) {
        None => &REDIS,
        Some("8") => &VALKEY_8,
        Some("9") => &VALKEY_9,
        Some(major) => panic!("measure Valkey {major}, and write its figures here"),
    }
}

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

/// Checks that the guide has a paragraph with these texts in this order.
fn guide_says(texts: &[&str]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/which_tool.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let holds = |paragraph: &str| {
        let paragraph = paragraph.replace('\n', " ");
        let mut rest = &paragraph[..];
        texts.iter().all(|text| match rest.split_once(text) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    };
    assert!(guide.split("\n\n").any(holds), "the guide does not say {texts:?}");
}

#[tokio::test]
async fn what_storms_take() {
    let redis = Redis::start().await;
    let figures = figures(&redis).await;
    let detector = StormDetector::new(Quota::per_minute(100), redis.store().await);
    let mut recorded = 0;
    let said = [(1, "168"), (100, "5,224"), (1000, "134,000")];
    for ((count, said), figure) in said.into_iter().zip(figures.storm_logs) {
        while recorded < count {
            detector.record("group-7", Uuid::new_v4().to_string()).await.unwrap();
            recorded += 1;
        }
        let bytes = memory(&redis, "storm:log").await;
        assert!(about(bytes, figure), "{count} messages take {bytes} bytes");
        let rows = ["| 1 message |", "| 100 messages |", "| 1,000 messages, the default cap"];
        let row = rows[[1, 100, 1000].iter().position(|it| *it == count).unwrap()];
        guide_says(&[row, said]);
    }
    let state = memory(&redis, "storm:state").await;
    assert!(about(state, figures.storm_state), "{state}");
    guide_says(&["storm takes 220 bytes more"]);
}

#[tokio::test]
async fn what_senders_and_bans_take() {
    let redis = Redis::start().await;
    let figures = figures(&redis).await;
    let store = redis.store().await;
    let rule: Rule = "peers 9/5m mute 48h".parse().unwrap();
    let monitor = SpeechMonitor::new([rule], store.clone());
    for peer in 0..5 {
        let message = Message::from("alice").to(format!("stranger-{peer}")).text("hello");
        assert!(monitor.check(&message).await.unwrap().is_delivered());
    }
    let peers = memory(&redis, "speech:peers").await;
    assert!(about(peers, figures.five_peers), "{peers}");
    guide_says(&["Five peers take 200 bytes"]);

    let penalty = "3/10m:1m,1h,24h".parse().unwrap();
    let policy = Policy::new("user").quota(Quota::per_minute(5)).penalty(penalty);
    Bans::new(policy, store).impose("bob", Duration::from_secs(60), "spam").await.unwrap();
    let ban = memory(&redis, "user:ban").await;
    assert!(about(ban, figures.ban), "{ban}");
    guide_says(&["A ban takes 120 bytes"]);
}

#[tokio::test]
async fn log_size_past_128_entries() {
    let redis = Redis::start().await;
    let figures = figures(&redis).await;
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
    let dearer = least_skiplist / 129.0 / (most_compact / 128.0);
    assert!(about(dearer, figures.dearer), "{bytes:?}");
    assert!(about(two_hundred / hundred, figures.twice_as_many), "{bytes:?}");
    assert!(about(two_hundred, figures.log_of_200), "{bytes:?}");
    assert!(about(thousand, figures.log_of_1000), "{bytes:?}");
    guide_says(&["25 kB on Redis, and 120 kB with a thousand; 17 kB and 86 kB on Valkey 9"]);
}
