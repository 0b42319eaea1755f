//! The speech monitor on a real Redis: between processes, in what it keeps there, and when that
//! fails. What it decides is tested beside it, in `src/moderation/contract.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use test_support::{Redis, Worker, patient_store};
use tokio::task::JoinSet;
use tower_sliding_window::moderation::{Counted, Message, Rule, SpeechMonitor};
use tower_sliding_window::{MemoryStore, Quota, RedisStore, StoreError};

const SENDERS: usize = 100;
const PROCESSES: usize = 3;
const MESSAGES: usize = 8;

/// One process of the test below; run by it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run as a process of its own by the test below"]
async fn worker_process() {
    let url = std::env::var("WORKER_REDIS_URL").expect("the test below sets it");
    let rules: [Rule; 1] = ["similar 5/5m 90% mute 12h".parse().unwrap()];
    let monitor = SpeechMonitor::new(rules, patient_store(url.as_str()).await)
        .on_mute(|event| println!("\nlog muted {}", name(event.sender.as_bytes())));
    let mut messages = JoinSet::new();
    for number in 0..SENDERS * MESSAGES {
        let monitor = monitor.clone();
        messages.spawn(async move {
            let sender = format!("sender-{}", number % SENDERS);
            let message = Message::from(&sender).text("Cheap gold at example.com");
            let delivered = monitor.check(&message).await.unwrap().is_delivered();
            format!("log {} {sender}\n", if delivered { "delivered" } else { "withheld" })
        });
    }
    print!("\n{}", messages.join_all().await.concat());
}

fn name(key: &[u8]) -> &str {
    std::str::from_utf8(key).unwrap()
}

#[tokio::test]
async fn processes_share_one_mute_and_one_event() {
    let redis = Redis::start().await;
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start("monitor::worker_process", &redis)).collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in workers.into_iter().flat_map(Worker::lines) {
        *counts.entry(line).or_default() += 1;
    }
    for sender in 0..SENDERS {
        let count = |what: &str| counts.get(&format!("log {what} sender-{sender}")).copied();
        let all = PROCESSES * MESSAGES;
        let outcomes = ["muted", "delivered", "withheld"].map(count);
        assert_eq!(outcomes, [Some(1), Some(4), Some(all - 4)]);
    }
    let monitor = monitor(&redis).await;
    let mute = monitor.mute_of("sender-0").await.unwrap().unwrap();
    assert_eq!(mute.rule(), Rule::recommended()[0]);
    let left = mute.until().duration_since(std::time::SystemTime::now()).unwrap();
    assert!((12 * 3600 - 60..=12 * 3600).contains(&left.as_secs()), "{left:?}");
    let hello = Message::from("sender-0").text("hello");
    assert!(!monitor.check(&hello).await.unwrap().is_delivered());
    monitor.unmute("sender-0").await.unwrap();
    assert!(monitor.check(&hello).await.unwrap().is_delivered());
    assert_eq!(monitor.mute_of("sender-0").await.unwrap(), None);
}

async fn monitor(redis: &Redis) -> SpeechMonitor {
    let mut rules = Rule::recommended().to_vec();
    rules.push("events 100/1m mute 1h".parse().unwrap());
    SpeechMonitor::new(rules, redis.store().await)
}

#[tokio::test]
async fn every_key_expires_and_keeps_little() {
    let redis = Redis::start().await;
    let monitor = monitor(&redis).await;
    for number in 0..300 {
        if number < 10 {
            // The mute is imposed at the fifth peer, so each script is loaded again.
            redis.run::<()>(&["SCRIPT", "FLUSH"]).await;
        }
        let message = Message::from("a}lice").to(number.to_string()).text(long(number));
        let _ = monitor.check(&message).await.unwrap();
    }
    let name = |part: &str| format!("tsw:{{=a%7Dlice}}:speech:{part}");
    let mut keys = redis.keys().await;
    keys.sort();
    assert_eq!(keys, ["messages", "mute", "peers", "prints"].map(name));
    // The longest window of the rules that count in it, and a second; the longest mute.
    for (part, held, seconds) in
        [("messages", 100, 60), ("peers", 9, 300), ("prints", 64, 300), ("mute", 0, 48 * 3600)]
    {
        if held > 0 {
            assert_eq!(redis.run::<usize>(&["ZCARD", &name(part)]).await, held, "{part}");
        }
        let ttl: i64 = redis.run(&["PTTL", &name(part)]).await;
        assert!((1..=(seconds + 1) * 1000).contains(&ttl), "{part}: {ttl}");
        assert!(ttl > seconds * 1000 - 30_000, "{part}: {ttl}");
    }
}

#[tokio::test]
async fn a_long_text_is_short_in_redis() {
    let redis = Redis::start().await;
    let monitor = monitor(&redis).await;
    for number in 0..70 {
        let text = long(number).repeat(10);
        assert!(monitor.check(&Message::from("alice").text(text)).await.unwrap().is_delivered());
    }
    let prints = ["ZRANGE", "tsw:{=alice}:speech:prints", "0", "-1"];
    let prints: Vec<Vec<u8>> = redis.run(&prints).await;
    // An id, and a fingerprint instead of 1,500 bytes.
    assert!(prints.len() == 64 && prints.iter().all(|it| it.len() <= 16 + 258));
}

#[tokio::test]
async fn a_rule_that_is_not_there_costs_no_key() {
    let redis = Redis::start().await;
    let rule: Rule = "peers 5/3m mute 24h".parse().unwrap();
    let monitor = SpeechMonitor::new([rule], redis.store().await);
    let _ = monitor.check(&Message::from("alice").text("hello, all")).await.unwrap();
    assert_eq!(redis.keys().await, Vec::<String>::new());
    let _ = monitor.check(&Message::from("alice").to("bob").text("hello")).await.unwrap();
    assert_eq!(redis.keys().await, ["tsw:{=alice}:speech:peers"]);
}

#[tokio::test]
async fn failing_store_is_an_error() {
    let redis = Redis::start().await;
    let monitor = SpeechMonitor::new(Rule::recommended(), redis.store().await);
    redis.run::<()>(&["SET", "tsw:{=alice}:speech:prints", "not a log"]).await;
    let error = monitor.check(&Message::from("alice").text("hello, everybody")).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("alice"), "{error}");
    let mute = "HSET tsw:{=bob}:speech:mute until_us 9e15 mute_us 1 rule ? count 1 percent 0";
    let mute: Vec<&str> = mute.split(' ').chain(["lengthened", "0"]).collect();
    redis.run::<()>(&mute).await;
    let error = monitor.mute_of("bob").await.unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");

    let store = RedisStore::connect_lazy("redis://127.0.0.1:1").unwrap();
    let monitor = SpeechMonitor::new(Rule::recommended(), store);
    let message = Message::from("alice").text("hello");
    assert!(matches!(monitor.check(&message).await, Err(StoreError::Unavailable)));
}

#[tokio::test]
async fn full_memory_store_keeps_its_mutes() {
    let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::with_capacity(1));
    for _ in 0..3 {
        let _ = monitor.check(&Message::from("alice").text("buy cheap gold")).await.unwrap();
    }
    let error = monitor.check(&Message::from("bob").text("hello, everybody")).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 1 }), "{error}");
    assert_eq!(monitor.mute_of("bob").await.unwrap(), None, "to look needs no room");
    assert!(monitor.mute_of("alice").await.unwrap().is_some());
}

#[tokio::test]
async fn debug_shows_no_sender_or_text() {
    let message = Message::from("alice").to("bob").text("a secret of hers");
    let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::new())
        .on_mute(|event| assert!(!format!("{event:?}").contains("alice"), "{event:?}"));
    for _ in 0..3 {
        let decision = monitor.check(&message).await.unwrap();
        let printed = format!("{message:?} {monitor:?} {decision:?}");
        for secret in ["alice", "bob", "secret"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
    assert!(monitor.mute_of("alice").await.unwrap().is_some());
    assert_eq!(monitor.panicked(), 0, "the hook has seen the mute");
}

#[tokio::test]
async fn a_panic_of_the_hook_leaves_the_mute() {
    let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::new())
        .on_mute(|_| panic!("a panic of the test's own"));
    for sender in ["alice", "bob"] {
        for _ in 0..3 {
            let _ = monitor.check(&Message::from(sender).text("buy cheap gold")).await.unwrap();
        }
        assert!(monitor.mute_of(sender).await.unwrap().is_some());
    }
    assert_eq!(monitor.panicked(), 2);
}

#[test]
fn panics_name_the_callers_line() {
    let (tell, reported) = std::sync::mpsc::channel();
    let (this, other) = (std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == this {
            let _ = tell.send(panic.location().unwrap().file().to_owned());
        } else {
            other(panic);
        }
    }));
    let minute = Duration::from_secs(60);
    let rule = || Rule::new(Counted::Events, Quota::per_minute(1), minute);
    assert!(std::panic::catch_unwind(rule).is_err(), "a count of one mutes everybody");
    assert_eq!(reported.recv().unwrap(), file!());
}

/// A text of 500 characters, 1,500 bytes, that is like no other.
fn long(number: u32) -> String {
    let character = |at: u32| char::from_u32(0x4e00 + (number * 499 + at * (number + 7)) % 20_000);
    (0..500).filter_map(character).collect()
}

/// Has strangers say long things, some of them once and some often.
async fn flood(monitor: &SpeechMonitor, store: &MemoryStore, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let stranger = if number % 2 == 0 { number } else { number % 100 };
        let message = Message::from(format!("stranger-{stranger}")).text(long(number));
        assert!(monitor.check(&message).await.unwrap().is_delivered());
        assert!(store.speech_bytes_used() <= 50_000, "{}", store.speech_bytes_used());
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_store_still_finds_a_new_spammer() {
    let store = MemoryStore::with_capacity(100).speech_bytes(50_000);
    let monitor = SpeechMonitor::new(Rule::recommended(), store.clone());
    let says = async |sender: &str| {
        let message = Message::from(sender).text("buy cheap gold at example.com ".repeat(20));
        monitor.check(&message).await.unwrap().is_delivered()
    };
    assert!(says("bob").await && says("bob").await && !says("bob").await);
    flood(&monitor, &store, 0..600).await;
    for spammer in 0..25_u32 {
        flood(&monitor, &store, 600 + 4 * spammer..604 + 4 * spammer).await;
        let name = spammer.to_string();
        assert!(says(&name).await && says(&name).await);
        assert!(!says(&name).await, "spammer {spammer} is muted");
    }
    assert!(!says("bob").await, "a mute stays");
}

#[tokio::test]
async fn a_store_full_of_mutes_is_an_error() {
    let store = MemoryStore::new().speech_bytes(20_000);
    let monitor = SpeechMonitor::new(Rule::recommended(), store.clone());
    for sender in 0..200_u32 {
        monitor.mute(sender.to_string(), Duration::from_secs(60)).await.unwrap();
    }
    let error = monitor.check(&Message::from("alice").text(long(1))).await.unwrap_err();
    assert!(matches!(error, StoreError::TooManyBytes { budget: 20_000 }), "{error}");
    assert_eq!(error.kind(), "full");
}

#[tokio::test(start_paused = true)]
async fn texts_of_a_muted_sender_expire() {
    let store = MemoryStore::new();
    let monitor = SpeechMonitor::new(Rule::recommended(), store.clone());
    for _ in 0..10 {
        let _ = monitor.check(&Message::from("alice").text(long(1))).await.unwrap();
    }
    assert!(store.speech_bytes_used() > 10 * 250);
    tokio::time::advance(Duration::from_secs(300)).await;
    assert!(monitor.mute_of("alice").await.unwrap().is_some(), "the mute lasts twelve hours");
    let used = store.speech_bytes_used();
    assert!(used < 500, "{used} bytes are kept of a mute");
    tokio::time::advance(Duration::from_secs(12 * 3600)).await;
    assert_eq!(monitor.mute_of("alice").await.unwrap(), None);
    assert_eq!(store.speech_bytes_used(), 0);
}
