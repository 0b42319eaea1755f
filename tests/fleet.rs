//! Several processes on one Redis, deny caches on, for seconds of real time: afterwards every
//! admission and every denial is checked against the whole log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use test_support::Redis;
use tower_sliding_window::{Decision, Limiter, Quota, RedisStore};

const LIMIT: u32 = 10;
const WINDOW: Duration = Duration::from_millis(200);
const QUOTA: Quota = Quota::new(LIMIT, WINDOW);
const KEYS: usize = 6;
const PROCESSES: usize = 3;
const RUNS_FOR: Duration = Duration::from_secs(4);

/// One process of the test below; run by it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run as a process of its own by the test below"]
async fn worker_process() {
    let url = std::env::var("WORKER_REDIS_URL").expect("the test below sets it");
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let store = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let limiter = Limiter::new(QUOTA, store.connect(url.as_str()).await.unwrap());
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
                format!("log A {key} {} {}\n", admitted.stamp().unwrap().as_micros(), admitted.id())
            }
            Decision::Denied(denied) => {
                pause = (denied.retry_after() / 3).max(Duration::from_millis(1));
                format!("log D {key} {} -\n", denied.stamp().unwrap().as_micros())
            }
        };
        lines.push(line);
        tokio::time::sleep(pause).await;
        pause /= 2;
    }
    lines
}

#[tokio::test]
async fn no_window_holds_too_many_and_no_denial_was_needless() {
    let redis = Redis::start().await;
    let workers: Vec<_> = (0..PROCESSES).map(|_| redis.spawn_worker()).collect();

    let mut admissions: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    let mut denials: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let ["log", kind, key, stamp, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                continue;
            };
            let log = if kind == "A" { &mut admissions } else { &mut denials };
            log.entry(key.to_owned()).or_default().push(stamp.parse().unwrap());
        }
    }

    let mut checked = (0, 0);
    for (key, stamps) in &mut admissions {
        stamps.sort_unstable();
        let within = |end: u128| {
            let after = stamps.partition_point(|stamp| stamp + WINDOW.as_micros() <= end);
            stamps.partition_point(|stamp| *stamp <= end) - after
        };
        for stamp in stamps.iter() {
            assert!(within(*stamp) <= LIMIT as usize, "key {key}: too many up to {stamp}");
        }
        for stamp in &denials[key] {
            assert!(within(*stamp) >= LIMIT as usize, "key {key}: denied at {stamp} without need");
        }
        checked = (checked.0 + stamps.len(), checked.1 + denials[key].len());
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
