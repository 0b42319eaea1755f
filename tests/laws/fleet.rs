//! Several processes on one Redis, deny caches on, for seconds of real time: afterwards every
//! admission and every denial is checked against the whole log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use test_support::{Redis, Worker, patient_store};
use tower_sliding_window::{Decision, Limiter, Quota};

const LIMIT: u32 = 10;
const WINDOW: Duration = Duration::from_millis(200);
const QUOTA: Quota = Quota::new(LIMIT, WINDOW);
const KEYS: usize = 6;
const PROCESSES: usize = 3;
const RUNS_FOR: Duration = Duration::from_secs(2);

/// One process of the test below; run by it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run as a process of its own by the test below"]
async fn worker_process() {
    let url = std::env::var("WORKER_REDIS_URL").expect("the test below sets it");
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let limiter = Limiter::new(QUOTA, patient_store(url.as_str()).await);
        for client in 0..KEYS * 2 {
            clients.spawn(work(limiter.clone(), client % KEYS));
        }
    }
    let lines = clients.join_all().await.concat();
    print!("\n{}", lines.concat());
}

/// Asks for one key at a changing pace, sometimes as often as it can, and logs each answer.
async fn work(limiter: Limiter, key: usize) -> Vec<String> {
    let start = Instant::now();
    let mut lines = Vec::new();
    let mut pause = Duration::ZERO;
    while start.elapsed() < RUNS_FOR {
        let line = match limiter.check(key.to_string()).await.unwrap() {
            Decision::Admitted(admitted) => {
                format!(
                    "log A {key} {} {}\n",
                    admitted.timestamp().unwrap().as_micros(),
                    admitted.id()
                )
            }
            Decision::Denied(denied) => {
                pause = (denied.retry_after() / 3).max(Duration::from_millis(1));
                format!("log D {key} {} -\n", denied.timestamp().unwrap().as_micros())
            }
        };
        lines.push(line);
        tokio::time::sleep(pause).await;
        pause /= 2;
    }
    lines
}

#[tokio::test]
async fn fleet_admits_and_denies_exactly() {
    let redis = Redis::start().await;
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start("fleet::worker_process", &redis)).collect();

    let mut admissions: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    let mut denials: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for worker in workers {
        for line in worker.lines() {
            let ["log", kind, key, timestamp, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                continue;
            };
            let log = if kind == "A" { &mut admissions } else { &mut denials };
            log.entry(key.to_owned()).or_default().push(timestamp.parse().unwrap());
        }
    }

    let mut checked = (0, 0);
    for (key, timestamps) in &mut admissions {
        timestamps.sort_unstable();
        let within = |end: u128| {
            let after =
                timestamps.partition_point(|timestamp| timestamp + WINDOW.as_micros() <= end);
            timestamps.partition_point(|timestamp| *timestamp <= end) - after
        };
        for timestamp in timestamps.iter() {
            assert!(within(*timestamp) <= LIMIT as usize, "key {key}: too many up to {timestamp}");
        }
        for timestamp in &denials[key] {
            assert!(
                within(*timestamp) >= LIMIT as usize,
                "key {key}: denied at {timestamp} without need"
            );
        }
        checked = (checked.0 + timestamps.len(), checked.1 + denials[key].len());
    }
    let (admitted, denied) = checked;
    let possible = KEYS * LIMIT as usize * (RUNS_FOR.as_millis() / WINDOW.as_millis()) as usize;
    assert_eq!(admissions.len(), KEYS);
    assert!(
        admitted > possible / 4,
        "{admitted} admissions, {possible} possible: too idle to tell"
    );
    assert!(denied > 100, "{denied} denials: too idle to tell");
}
