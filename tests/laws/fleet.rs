//! Several stores on one Redis, as those of a fleet, deny caches on, for seconds of real time: afterwards every
//! admission and every denial is checked against the whole log.

use std::process::exit;

use fork::{Fork, fork, waitpid};

use crate::*;

const LIMIT: u32 = 10;
const WINDOW: Duration = Duration::from_millis(200);
const QUOTA: Quota = Quota::new(LIMIT, WINDOW);
const KEYS: usize = 6;
const STORES: usize = 6;
const RUNS_FOR: Duration = Duration::from_secs(2);

/// Asks for one key at a changing pace, sometimes as often as it can. Returns whether each answer was a denial, and its timestamp.
async fn work(limiter: Limiter, key: usize) -> Vec<(usize, bool, u128)> {
    let start = Instant::now();
    let mut answers = Vec::new();
    let mut pause = Duration::ZERO;
    while start.elapsed() < RUNS_FOR {
        let (is_denied, timestamp) = match limiter.check(key.to_string()).await.unwrap() {
            Decision::Admitted(admitted) => (false, admitted.timestamp().unwrap()),
            Decision::Denied(denied) => {
                pause = (denied.retry_after() / 3).max(Duration::from_millis(1));
                (true, denied.timestamp().unwrap())
            }
        };
        answers.push((key, is_denied, timestamp.as_micros()));
        sleep(pause).await;
        pause /= 2;
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_admits_and_denies_exactly() {
    let redis = Redis::start().await;
    let mut clients = JoinSet::new();
    for _ in 0..STORES {
        let limiter = limiter(QUOTA, patient_store(redis.url()).await);
        for client in 0..KEYS * 2 {
            clients.spawn(work(limiter.clone(), client % KEYS));
        }
    }
    // Of each key the timestamps of its admissions and of its denials.
    let mut logs: BTreeMap<usize, [Vec<u128>; 2]> = BTreeMap::new();
    for (key, is_denied, timestamp) in clients.join_all().await.concat() {
        logs.entry(key).or_default()[usize::from(is_denied)].push(timestamp);
    }

    let limit = LIMIT as usize;
    let (mut admitted, mut denied) = (0, 0);
    for (key, [admissions, denials]) in &mut logs {
        admissions.sort_unstable();
        let within = |end: u128| {
            let out = admissions.partition_point(|it| it + WINDOW.as_micros() <= end);
            admissions.partition_point(|it| *it <= end) - out
        };
        for end in admissions.iter() {
            assert!(within(*end) <= limit, "key {key}: too many up to {end}");
        }
        for at in denials.iter() {
            assert!(within(*at) >= limit, "key {key}: denied at {at} without need");
        }
        (admitted, denied) = (admitted + admissions.len(), denied + denials.len());
    }
    let possible = KEYS * limit * (RUNS_FOR.as_millis() / WINDOW.as_millis()) as usize;
    assert_eq!(logs.len(), KEYS);
    let is_busy = admitted > possible / 4 && denied > 100;
    assert!(is_busy, "{admitted} of {possible} admitted, {denied} denied: too idle to tell");
}

/// Law 5. A program that forks has the same state of its random numbers in both processes.
#[test]
fn forked_process_has_identities_of_its_own() {
    let limiter = Limiter::new(Quota::per_hour(9), MemoryStore::new());
    let id = || {
        let decision = tokio_test::block_on(limiter.check("bob")).unwrap();
        decision.admitted().unwrap().id().to_string()
    };
    id();
    let file = tempfile::NamedTempFile::new().unwrap();
    match fork().unwrap() {
        Fork::Child => exit(i32::from(std::fs::write(&file, id()).is_err())),
        Fork::Parent(child) => assert_eq!(waitpid(child).unwrap(), 0),
    }
    let ids = [id(), std::fs::read_to_string(&file).unwrap()];
    assert!(ids[0].len() == 36 && ids[1].len() == 36 && ids[0] != ids[1], "{ids:?}");
}
