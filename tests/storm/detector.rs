//! Storm detection on a real Redis: between processes, in what it keeps there, and when that fails.
//! What it decides is tested beside it, in `src/storm/promises.rs`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::{Cluster, Redis, Worker, patient_store};
use tokio::task::JoinSet;
use tower_sliding_window::storm::StormRule;
use tower_sliding_window::{MemoryStore, RedisStore, StoreError, StormDetector, StormEvent};

const GROUPS: usize = 8;
const PROCESSES: usize = 3;
const MESSAGES: usize = 120;

/// The log of a storm expires while no process looks at it.
#[tokio::test]
async fn late_look_knows_when_a_storm_ended() {
    let redis = Redis::start().await;
    let rule = || rule("3/1s").ends_below(2);
    let first = StormDetector::new(rule(), redis.store().await).unwrap();
    for id in ["1", "2", "3"] {
        first.record("lobby", id).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    let fourth = first.record("lobby", "4").await.unwrap();
    assert!(fourth.events().iter().any(StormEvent::is_start), "{fourth:?}");
    drop(first);
    let log = "tsw:{=lobby}:default:3/1s:storm:log";
    while redis.run::<bool>(&["EXISTS", log]).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let second = StormDetector::new(rule(), redis.store().await).unwrap();
    let reading = second.look("lobby").await.unwrap();
    let [StormEvent::Ended { lasted, .. }] = reading.events() else { panic!("{reading:?}") };
    // The third message left the window 600 ms after the fourth came, and that a second after it.
    assert!(*lasted <= Duration::from_millis(600), "{lasted:?}");
}

/// One process of the test below; run by it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run as a process of its own by the test below"]
async fn worker_process() {
    let url = std::env::var("WORKER_REDIS_URL").expect("the test below sets it");
    let store = patient_store(url.as_str()).await;
    let detector = StormDetector::new(rule("50/5s"), store).unwrap().on_event(|event| {
        let group = std::str::from_utf8(event.group().as_bytes()).unwrap();
        match event {
            StormEvent::Started { count, .. } => println!("\nlog start {group} {count}"),
            StormEvent::Ended { peak, .. } => println!("\nlog end {group} {peak}"),
            _ => unreachable!("there are no others"),
        }
    });
    let number = all_are_there(&url).await;
    let mut messages = JoinSet::new();
    // Each message comes to two processes.
    for at in 0..MESSAGES * 2 / PROCESSES {
        let id = (number * MESSAGES / PROCESSES + at) % MESSAGES;
        for group in 0..GROUPS {
            let detector = detector.clone();
            messages.spawn(async move {
                detector.record(format!("group-{group}"), format!("message-{id}")).await.unwrap();
            });
        }
    }
    messages.join_all().await;
    detector.settled().await;
    detector.flush().await;
}

/// Waits until all processes are there; returns which one this is.
async fn all_are_there(url: &str) -> usize {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let number: usize = redis::cmd("INCR").arg("here").query_async(&mut connection).await.unwrap();
    loop {
        let here: usize = redis::cmd("GET").arg("here").query_async(&mut connection).await.unwrap();
        if here == PROCESSES {
            return number - 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn processes_share_one_start_and_end() {
    let redis = Redis::start().await;
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start("detector::worker_process", &redis)).collect();
    let mut reported: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
    for worker in workers {
        for line in worker.lines() {
            if let ["log", what, group, count] = line.split(' ').collect::<Vec<_>>()[..] {
                let counts = reported.entry((group.to_owned(), what.to_owned())).or_default();
                counts.push(count.parse().unwrap());
            }
        }
    }
    let all = MESSAGES.try_into().unwrap();
    for group in 0..GROUPS {
        let of = |what: &str| reported.get(&(format!("group-{group}"), what.to_owned()));
        assert_eq!(of("start"), Some(&vec![51]), "{reported:?}");
        assert_eq!(of("end"), Some(&vec![all]), "each message counted once: {reported:?}");
    }
}

fn rule(threshold: &str) -> StormRule {
    StormRule::new(threshold.parse().unwrap())
}

/// A detector, and the events of its hook.
struct Watched {
    detector: StormDetector,
    reported: Arc<Mutex<Vec<StormEvent>>>,
}

impl Watched {
    fn on(store: RedisStore, threshold: &str) -> Self {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let heard = reported.clone();
        let detector = StormDetector::new(rule(threshold), store)
            .unwrap()
            .on_event(move |event| heard.lock().unwrap().push(event.clone()));
        Self { detector, reported }
    }

    async fn record(&self, group: &str, ids: std::ops::Range<u32>) {
        for id in ids {
            self.detector.record(group, id.to_string()).await.unwrap();
        }
    }

    /// Returns for each event whether it was a start, once nothing more is to come.
    async fn reported(&self) -> Vec<bool> {
        self.detector.settled().await;
        self.detector.flush().await;
        self.reported.lock().unwrap().iter().map(StormEvent::is_start).collect()
    }
}

#[tokio::test]
async fn silent_storm_ends_once_for_all() {
    let redis = Redis::start().await;
    let [one, two] =
        [Watched::on(redis.store().await, "10/1s"), Watched::on(redis.store().await, "10/1s")];
    one.record("lobby", 0..11).await;
    two.record("lobby", 11..14).await;
    assert_eq!((one.detector.watched(), two.detector.watched()), (1, 1));
    let mut reported = one.reported().await;
    reported.extend(two.reported().await);
    assert_eq!(reported, [true, false]);
    assert_eq!((one.detector.watched(), two.detector.watched()), (0, 0));
}

#[tokio::test]
async fn another_process_reports_the_end() {
    let redis = Redis::start().await;
    let two = Watched::on(redis.store().await, "10/1s");
    {
        let one = Watched::on(redis.store().await, "10/1s");
        one.record("lobby", 0..11).await;
        one.detector.flush().await;
        assert_eq!(one.reported.lock().unwrap().len(), 1);
        two.record("lobby", 11..12).await;
    }
    assert_eq!(two.reported().await, [false]);
}

#[tokio::test]
async fn every_key_expires_and_keeps_to_the_cap() {
    let redis = Redis::start().await;
    let rule = rule("10/60s").cap(20).cool_down(Duration::from_secs(300)).named("chat");
    let detector = StormDetector::new(rule, redis.store().await).unwrap();
    for id in 0..30 {
        let reading = detector.record("a}b", id.to_string()).await.unwrap();
        assert_eq!(reading.count(), (id + 1).min(20));
        assert_eq!(reading.is_saturated(), id >= 19);
        assert_eq!(reading.storm().is_some(), id >= 10);
    }
    let storm = detector.look("a}b").await.unwrap().storm().unwrap();
    assert_eq!((storm.peak(), storm.is_saturated()), (20, true));
    let profile = detector.profile("a}b", Duration::from_secs(20)).await.unwrap();
    assert_eq!((profile.counts().iter().sum::<u32>(), profile.is_saturated()), (20, true));
    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["log", "state"].map(|part| format!("tsw:{{=a%7Db}}:chat:storm:{part}")));
    assert_eq!(redis.run::<u32>(&["ZCARD", &keys[0]]).await, 20);
    for (key, most) in [(&keys[0], 61_000), (&keys[1], 24 * 3_600_000 + 61_000)] {
        let ttl: i64 = redis.run(&["PTTL", key]).await;
        assert!((most - 30_000..=most).contains(&ttl), "{key}: {ttl}");
    }
}

#[tokio::test]
async fn cluster_keeps_each_group_on_one_server() {
    let cluster = Cluster::start().await;
    let store = patient_store(cluster.servers()).await;
    let watched = Watched::on(store, "10/2s");
    for group in 0..20 {
        watched.record(&format!("group-{group}"), 0..11).await;
    }
    let steps = watched.detector.profile("group-0", Duration::from_millis(10)).await.unwrap();
    assert_eq!((steps.counts().len(), steps.counts().iter().sum::<u32>()), (200, 11));
    let reported = watched.reported().await;
    let starts = reported.iter().filter(|is_start| **is_start).count();
    assert_eq!((starts, reported.len() - starts), (20, 20));
}

#[tokio::test]
async fn outage_is_an_error_and_storm_ends_later() {
    let mut redis = Redis::start_with(&["--appendonly", "yes"]).await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let watched = Watched::on(store, "10/2s");
    watched.record("lobby", 0..11).await;
    redis.kill();
    for id in 11..100 {
        let error = watched.detector.record("lobby", id.to_string()).await.unwrap_err();
        assert!(!error.to_string().contains("lobby"), "{error}");
    }
    let error = watched.detector.record("lobby", "more").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable), "{error}");
    assert!(watched.detector.profile("lobby", Duration::from_secs(1)).await.is_err());
    redis.start_again();
    assert_eq!(watched.reported().await, [true, false], "the end that no message causes");
}

#[tokio::test]
async fn refusal_by_redis_names_no_group() {
    let redis = Redis::start().await;
    let detector = StormDetector::new(rule("10/60s"), redis.store().await).unwrap();
    redis.run::<()>(&["SET", "tsw:{=lobby}:default:10/60s:storm:log", "not a log"]).await;
    let error = detector.record("lobby", "1").await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("lobby"), "{error}");
    redis.run::<()>(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(detector.record("other", "1").await.unwrap().count(), 1);
    redis.run::<()>(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(detector.profile("other", Duration::from_secs(60)).await.unwrap().counts(), [1]);
}

#[tokio::test]
async fn full_memory_store_keeps_its_storms() {
    let detector = StormDetector::new(rule("1/60s"), MemoryStore::with_capacity(1)).unwrap();
    detector.record("lobby", "1").await.unwrap();
    let error = detector.record("other", "1").await.unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 1 }), "{error}");
    assert_eq!(detector.look("other").await.unwrap().count(), 0, "to look needs no room");
    assert!(detector.record("lobby", "2").await.unwrap().storm().is_some());
}

#[tokio::test]
async fn a_profile_has_a_bounded_number_of_steps() {
    let detector = StormDetector::new(rule("10/60s"), MemoryStore::new()).unwrap();
    let error = async |step| detector.profile("lobby", step).await.unwrap_err().to_string();
    assert!(error(Duration::ZERO).await.contains("at least 1us"));
    assert!(error(Duration::from_nanos(999)).await.contains("at least 1us"));
    assert!(error(Duration::from_millis(59)).await.contains("1017 steps"));
    assert!(error(Duration::from_micros(1)).await.contains("at most 1000"));
    let finest = detector.profile("lobby", Duration::from_millis(60)).await.unwrap();
    assert_eq!(finest.counts(), [0; 1000]);
}

#[tokio::test]
async fn debug_shows_no_group_or_message() {
    let watched = StormDetector::new(rule("1/60s"), MemoryStore::new()).unwrap();
    watched.record("lobby", "secret").await.unwrap();
    let reading = watched.record("lobby", "secret too").await.unwrap();
    let printed = format!("{reading:?} {:?} {watched:?}", reading.events());
    assert_eq!(reading.events().len(), 1);
    assert!(!printed.contains("lobby") && !printed.contains("secret"), "{printed}");
}
