//! Decisions are recorded without a delay, and replayed as a store would decide.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::history::{KeyForm, ReadError, Record, Recorder, WhatIf, read, what_if};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Limiter, MemoryStore, Policy, PolicyHandle, Quota, SlidingWindowLayer, key,
};

test_support::on_every_store!(decisions_are_recorded);

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn records(&self) -> Vec<Record> {
        read(self.text().as_bytes()).collect::<Result<_, _>>().unwrap()
    }
}

fn recorder(keys: KeyForm) -> (Recorder, Output) {
    let output = Output::default();
    (Recorder::new(output.clone(), keys).unwrap(), output)
}

async fn decisions_are_recorded(store: impl Store) {
    let (recorder, output) = recorder(KeyForm::plain());
    let limiter =
        Limiter::new(Policy::new("user").quota("2/10m".parse().unwrap()), recorder.record(store));
    let mut decided = Vec::new();
    for cost in [1, 2, 1] {
        decided.push((cost, limiter.check_cost("alice", cost).await.unwrap().is_admitted()));
    }
    recorder.flush();
    let records = output.records();
    let recorded: Vec<_> = records.iter().map(|it| (it.cost, it.admitted)).collect();
    assert_eq!(recorded, decided);
    assert_eq!(recorded, [(1, true), (2, false), (1, true)]);
    assert!(records.iter().all(|it| it.key == "alice" && it.policy.as_deref() == Some("user")));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    assert!(records.iter().all(|it| now.abs_diff(it.time) < Duration::from_secs(30)));
    assert_eq!(recorder.dropped(), 0);

    let policy = |name| PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(9)));
    let (parts, messages) = (policy("parts"), policy("messages"));
    let logs = [(&parts, "bank", 4), (&messages, "bob", 1)];
    assert!(limiter.check_all(logs).await.unwrap().is_admitted());
    recorder.flush();
    let costs: Vec<_> = output.records()[3..].iter().map(|it| it.cost).collect();
    assert_eq!(costs, [4, 1], "each log has a cost of its own");
}

const RULES: [&str; 4] = ["3/10s", "2/1s,5/30s", "4/7s,9/60s", "1/1ms"];
const PENALTY: &str = "2/40s:5s,20s";

fn policy(quotas: &str) -> Policy {
    let quotas = quotas.split(',').map(|quota| quota.parse().unwrap());
    quotas.fold(Policy::new("user"), Policy::quota).penalty(PENALTY.parse().unwrap())
}

/// Sends random traffic, the same for each seed. Returns the recording, and what was decided.
async fn traffic(seed: u64, quotas: &str) -> (Vec<Record>, Vec<bool>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (recorder, output) = recorder(KeyForm::plain());
    let limiter = Limiter::new(policy(quotas), recorder.record(MemoryStore::new()));
    let mut decided = Vec::new();
    for _ in 0..300 {
        // Often exactly at the end of a window, and several at one instant.
        let pause = [0, 500_000, 1_000_000, 999_999, random.u64(0..4_000_000)];
        tokio::time::advance(Duration::from_micros(*random.choice(&pause).unwrap())).await;
        let key = ["alice", "bob", "carol"][random.usize(0..3)];
        // A request of a cost above the limit never comes to a store.
        let cost = if quotas.starts_with('1') { 1 } else { random.u32(0..3) };
        decided.push(limiter.check_cost(key, cost).await.unwrap().is_admitted());
    }
    recorder.flush();
    (output.records(), decided)
}

fn denied_at(replayed: &WhatIf) -> Vec<(Duration, &str)> {
    replayed.denials.iter().map(|it| (it.time, it.key.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn replay_decides_as_the_store_does() {
    let mut denials = 0;
    for seed in 0..10 {
        for recorded in RULES {
            let (history, decided) = traffic(seed, recorded).await;
            let same = what_if(&policy(recorded), history.clone());
            assert_eq!((same.tally.newly_denied, same.tally.newly_admitted), (0, 0), "{recorded}");
            assert_eq!(same.tally.requests as usize, decided.len());
            let denied = decided.iter().filter(|admitted| !**admitted).count();
            assert_eq!(same.tally.would_deny as usize, denied);
            denials += denied;
            for other in RULES.iter().filter(|it| it.starts_with('1') == recorded.starts_with('1'))
            {
                let replayed = what_if(&policy(other), history.clone());
                let (really, _) = traffic(seed, other).await;
                // The two runs began at different times.
                let start = |history: &[Record]| history.iter().map(|it| it.time).min().unwrap();
                let really_denied: Vec<_> = really.iter().filter(|it| !it.admitted).collect();
                let offset = |time| time - start(&really);
                let expected: Vec<_> =
                    really_denied.iter().map(|it| (offset(it.time), it.key.as_str())).collect();
                let mut replayed_denied = denied_at(&replayed);
                replayed_denied.iter_mut().for_each(|it| it.0 -= start(&history));
                assert_eq!(replayed_denied, expected, "{recorded} under {other}");
            }
        }
    }
    assert!(denials > 1_000, "{denials} denials");
}

#[test]
fn replay_counts_by_quota_and_key() {
    let at =
        |seconds, key: &str, admitted| Record::new(Duration::from_secs(seconds), key, admitted);
    let mut other_policy = at(3, "alice", true);
    other_policy.policy = Some("ip".to_owned());
    // In any order.
    let history = [
        at(2, "alice", true),
        at(0, "alice", true),
        at(1, "alice", true),
        at(100, "alice", false),
        at(5, "bob", false),
        other_policy,
    ];
    let replayed = what_if(&"2/60s,9/1h".parse().unwrap(), history);
    let tally = replayed.tally;
    assert_eq!((tally.requests, tally.denied, tally.would_deny), (6, 2, 1));
    assert_eq!((tally.newly_denied, tally.newly_admitted), (1, 2));
    assert_eq!(
        replayed.quotas,
        [(Quota::new(2, Duration::from_secs(60)), 1), (Quota::per_hour(9), 0)]
    );
    let keys: Vec<_> =
        replayed.keys.iter().map(|it| (it.policy.as_deref(), it.key.as_str())).collect();
    assert_eq!(keys, [(None, "alice"), (None, "bob"), (Some("ip"), "alice")]);
    assert_eq!(replayed.keys[0].tally.newly_denied, 1);
    let [denial] = &replayed.denials[..] else { panic!("{replayed:?}") };
    assert_eq!((denial.time, denial.key.as_str()), (Duration::from_secs(2), "alice"));
    assert_eq!((denial.retry_after, denial.was_admitted), (Duration::from_secs(58), true));
}

#[test]
fn replay_without_records_is_empty() {
    let replayed = what_if(&Policy::from(Quota::per_minute(1)), []);
    assert_eq!((replayed.tally.requests, replayed.keys.len()), (0, 0));
}

#[tokio::test]
async fn recording_has_no_key_by_default() {
    let (recorder, output) = recorder(KeyForm::default());
    let limiter = Limiter::new(Quota::per_minute(5), recorder.record(MemoryStore::new()));
    for key in ["alice", "bob", "alice"] {
        assert!(limiter.check(key).await.unwrap().is_admitted());
    }
    recorder.flush();
    let text = output.text();
    assert!(!text.contains("alice") && !text.contains("bob"), "{text}");
    let records = output.records();
    assert_eq!(records[0].key, records[2].key);
    assert_ne!(records[0].key, records[1].key);
    assert_eq!(records[0].key.len(), 32);
    assert!(!format!("{:?}", KeyForm::hashed_with("secret")).contains("secret"));
}

#[tokio::test]
async fn plain_keys_are_escaped() {
    let (recorder, output) = recorder(KeyForm::plain());
    let limiter = Limiter::new(Quota::per_minute(5), recorder.record(MemoryStore::new()));
    assert!(limiter.check(&b"a\n\"\xff"[..]).await.unwrap().is_admitted());
    recorder.flush();
    assert_eq!(output.text().lines().count(), 1);
    assert_eq!(output.records()[0].key, "a\\n\\\"\\xff");
}

#[tokio::test]
async fn layer_records_each_rule() {
    let (recorder, output) = recorder(KeyForm::plain());
    let store = recorder.record(MemoryStore::new());
    let rule = |name: &str, limit| Policy::new(name).quota(Quota::per_minute(limit));
    let service = SlidingWindowLayer::new(rule("user", 5), key::constant("alice"), store)
        .rule(rule("ip", 1), key::constant("192.0.2.7"))
        .layer(service_fn(async |_: Request<()>| Ok::<_, &str>(Response::new(()))));
    for _ in 0..2 {
        service.clone().oneshot(Request::new(())).await.unwrap();
    }
    recorder.flush();
    let recorded = output.records().into_iter().map(|it| (it.policy.unwrap(), it.key, it.admitted));
    let expected = [("user", "alice", true), ("ip", "192.0.2.7", true)];
    let denied = expected.map(|(policy, key, _)| (policy, key, false));
    let expected = [expected, denied].concat();
    let owned = |(policy, key, admitted): (&str, &str, _)| (policy.into(), key.into(), admitted);
    assert_eq!(recorded.collect::<Vec<_>>(), expected.into_iter().map(owned).collect::<Vec<_>>());
}

/// An output that does not take anything before it is released.
struct Stuck(Receiver<()>, Output);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An error: released for good.
        let _ = self.0.recv();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn slow_output_delays_no_request() {
    const REQUESTS: u64 = 20_000;
    let ((release, stuck), output) = (channel(), Output::default());
    let recorder = Recorder::new(Stuck(stuck, output.clone()), KeyForm::plain()).unwrap();
    let limiter = Limiter::new(Quota::per_minute(1_000_000), recorder.record(MemoryStore::new()));
    for _ in 0..REQUESTS {
        assert!(limiter.check("alice").await.unwrap().is_admitted());
    }
    assert!(recorder.dropped() > REQUESTS / 4, "{}", recorder.dropped());
    drop(release);
    recorder.flush();
    assert_eq!(output.records().len() as u64 + recorder.dropped(), REQUESTS);
}

struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("the disk is full"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn broken_output_is_counted() {
    let recorder = Recorder::new(Broken, KeyForm::plain()).unwrap();
    let limiter = Limiter::new(Quota::per_minute(9_999), recorder.record(MemoryStore::new()));
    for _ in 0..1_000 {
        assert!(limiter.check("alice").await.unwrap().is_admitted());
    }
    recorder.flush();
    assert!(recorder.dropped() > 500, "a few stay in the buffer: {}", recorder.dropped());
}

#[test]
fn wrong_lines_are_named_without_their_text() {
    let good = r#"{"time":1790000000.123456,"key":"a","admitted":true}"#;
    for wrong in [
        r#"{"time":-1,"key":"mallory","admitted":true}"#,
        r#"{"time":1e300,"key":"mallory","admitted":true}"#,
        r#"{"time":1,"key":"mallory"}"#,
        r#"{"time":1,"key":"mallory","admitted":true,"cost":1025}"#,
        r#"{"time":1,"key":7,"admitted":true}"#,
        "mallory",
    ] {
        let text = format!("{good}\n\n{wrong}\n{good}\n");
        let read: Vec<_> = read(text.as_bytes()).collect();
        assert_eq!(read.len(), 3, "the lines after it are read");
        let error = read[1].as_ref().unwrap_err();
        assert!(matches!(error, ReadError::Line { line: 3, .. }), "{error:?}");
        assert!(!error.to_string().contains("mallory"), "{error}");
        let time = read[0].as_ref().unwrap().time;
        assert_eq!(time, Duration::from_micros(1_790_000_000_123_456));
    }
}

#[test]
fn line_that_is_cut_off_is_skipped() {
    let line = r#"{"time":1,"key":"a","admitted":true}"#;
    for end in 1..line.len() {
        let text = format!("{line}\n{}", &line[..end]);
        let read: Result<Vec<_>, _> = read(text.as_bytes()).collect();
        assert_eq!(read.unwrap().len(), 1);
    }
    assert_eq!(read(format!("{line}\n{line}").as_bytes()).count(), 2);
}
