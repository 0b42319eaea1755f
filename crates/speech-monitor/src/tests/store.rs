//! The speech monitor on a real Redis: between processes, in what it keeps there, and when that
//! fails. What it decides is tested in `decisions`.

use test_support::recorder::RecordedMetrics;
use test_support::{Redis, memory_kb, patient_store, run_worker};
use tokio::task::JoinSet;
use tower_sliding_window::{Key, StoreError};

use super::{Audit, HOUR, is_delivered, rules};
use crate::monitor::BUDGET;
use crate::{Message, Rule, SpeechMonitor};

const SENDERS: usize = 10;
const PROCESSES: usize = 3;
const MESSAGES: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_one_mute_and_one_event() {
    let redis = Redis::start().await;
    let (audit, mut messages) = (Audit::default(), JoinSet::new());
    for _ in 0..PROCESSES {
        let store = patient_store(redis.url()).await;
        let rules = rules(&["similar 5/5m 90% mute 12h"]);
        let monitor = audit.of(SpeechMonitor::on_redis(rules, &store));
        for number in 0..SENDERS * MESSAGES {
            let (monitor, sender) = (monitor.clone(), format!("sender-{}", number % SENDERS));
            messages.spawn(async move {
                let message = Message::from(&sender).text("Cheap gold at example.com");
                is_delivered(&monitor, &message).await.then_some(sender)
            });
        }
    }
    let delivered = messages.join_all().await;
    let mut delivered: Vec<_> = delivered.into_iter().flatten().collect();
    delivered.sort_unstable();
    let mut muted: Vec<_> = audit.take().into_iter().map(|event| event.sender).collect();
    muted.sort_unstable();
    let senders: Vec<_> = (0..SENDERS).map(|number| format!("sender-{number}")).collect();
    assert!(muted.iter().map(Key::as_bytes).eq(senders.iter().map(String::as_bytes)), "{muted:?}");
    assert!(delivered.iter().eq(senders.iter().flat_map(|it| [it; 4])), "{delivered:?}");
    let monitor = monitor(&redis).await;
    let mute = monitor.mute_of("sender-0").await.unwrap().unwrap();
    assert!(mute.reason.starts_with("similar 5/300s 90% mute 12h: "), "{mute:?}");
    let left = mute.remaining.as_secs();
    assert!((12 * 3600 - 60..=12 * 3600).contains(&left), "{left:?}");
    let hello = Message::from("sender-0").text("hello");
    assert!(!is_delivered(&monitor, &hello).await);
    assert!(monitor.unmute("sender-0").await.unwrap());
    assert!(is_delivered(&monitor, &hello).await);
    assert_eq!(monitor.mute_of("sender-0").await.unwrap(), None);
}

async fn monitor(redis: &Redis) -> SpeechMonitor {
    let mut rules = Rule::recommended().to_vec();
    rules.push("events 100/1m mute 1h".parse().unwrap());
    SpeechMonitor::on_redis(rules, &redis.store().await)
}

#[tokio::test]
async fn every_key_expires_and_keeps_little() {
    let redis = Redis::start().await;
    let monitor = monitor(&redis).await;
    for number in 0..300 {
        if number < 10 {
            // The mutes are imposed by now, so each script is loaded again.
            redis.run::<()>(&["SCRIPT", "FLUSH"]).await;
        }
        let message = Message::from("a}lice").to(number.to_string()).text("buy cheap gold");
        let _ = monitor.check(&message).await.unwrap();
    }
    let name = |part: &str| format!("tsw:{{=a%7Dlice}}:speech:{part}");
    let mut keys = redis.keys().await;
    keys.sort();
    let parts = ["ban", "log:messages", "log:peers", "log:prints"];
    assert_eq!(keys, parts.map(name));
    // The longest window of the rules that count in it, and a second; the longest mute.
    let two_days = 48 * 3600;
    for (part, held, seconds) in [
        ("ban", 0, two_days),
        ("log:messages", 100, 60),
        ("log:peers", 9, 300),
        ("log:prints", 64, 300),
    ] {
        if held > 0 {
            assert_eq!(redis.entries(&name(part)).await, held, "{part}");
        }
        let ttl: i64 = redis.run(&["PTTL", &name(part)]).await;
        assert!((1..=(seconds + 1) * 1000).contains(&ttl), "{part}: {ttl}");
        assert!(ttl > seconds * 1000 - 30_000, "{part}: {ttl}");
    }
}

#[tokio::test]
async fn a_rule_that_is_not_there_costs_no_key() {
    let redis = Redis::start().await;
    let rules = rules(&["peers 5/3m mute 24h"]);
    let monitor = SpeechMonitor::on_redis(rules, &redis.store().await);
    let _ = monitor.check(&Message::from("alice").text("hello, all")).await.unwrap();
    assert_eq!(redis.keys().await, Vec::<String>::new());
    let _ = monitor.check(&Message::from("alice").to("bob").text("hello")).await.unwrap();
    assert_eq!(redis.keys().await, ["tsw:{=alice}:speech:log:peers"]);
}

#[tokio::test]
async fn failing_store_is_an_error() {
    let redis = Redis::start().await;
    let monitor = SpeechMonitor::on_redis(Rule::recommended(), &redis.store().await);
    redis.run::<()>(&["SET", "tsw:{=alice}:speech:log:prints", "not a log"]).await;
    let error = monitor.check(&Message::from("alice").text("hello, everybody")).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("alice"), "{error}");
    // A mute can be lifted, and what she wrote still counts.
    let bans = ["resetkeys", "~*:ban", "~*:strikes", "~*:lifted"];
    redis.run::<()>(&[&["ACL", "SETUSER", "default"], &bans[..]].concat()).await;
    let error = monitor.unmute("alice").await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn debug_shows_no_sender_or_text() {
    let message = Message::from("alice").to("bob").text("a secret of hers");
    let audit = Audit::default();
    let monitor = audit.of(SpeechMonitor::in_process(Rule::recommended()));
    for _ in 0..3 {
        let decision = monitor.check(&message).await.unwrap();
        let printed = format!("{message:?} {monitor:?} {decision:?}");
        for secret in ["alice", "bob", "secret"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
    let events = audit.take();
    assert!(events.len() == 1 && !format!("{events:?}").contains("alice"), "{events:?}");
}

#[tokio::test]
async fn a_panic_of_the_hook_is_an_error_and_leaves_the_mute() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let monitor = SpeechMonitor::in_process(rules(&["events 2/1m mute 1h"]))
        .on_mute(|_| panic!("a panic of the test's own"));
    let message = Message::from("alice");
    assert!(is_delivered(&monitor, &message).await);
    assert!(matches!(monitor.check(&message).await, Err(StoreError::Unavailable)));
    assert!(!is_delivered(&monitor, &message).await);
    assert!(matches!(monitor.mute("bob", HOUR).await, Err(StoreError::Unavailable)));
    assert!(monitor.mute_of("bob").await.unwrap().is_some());
    for rule in ["events 2/60s mute 1h", "manual"] {
        let muted = format!("sliding_window_mutes_total{{rule={rule}}}");
        assert_eq!(recorded.count(&muted), 1, "{rule}");
    }
}

/// A process of its own for the test below, whose memory no other test takes.
#[tokio::test]
#[ignore = "run as a process of its own by the test below"]
async fn flood_process() {
    // A tenth, because an unoptimised build takes its time.
    let monitor = SpeechMonitor::with_budget(rules(&["events 100/1h mute 1h"]), BUDGET / 10);
    let before = memory_kb("self", "VmHWM");
    for number in 0..50_000 {
        let message = Message::from(format!("{number:0>128}"));
        assert!(is_delivered(&monitor, &message).await);
    }
    let took = memory_kb("self", "VmHWM") - before;
    assert!(took <= (256 << 10) / 10, "{took} kB");
}

#[test]
fn a_flood_of_senders_takes_no_more_than_the_documentation_says() {
    run_worker("tests::store::flood_process", &[]);
}
