//! Distinct values and requests in flight: in an outage, after a loss, and when processes die.

use crate::*;

const VALUES: &str = "tsw:{=address}:accounts:1h:distinct";

fn accounts(store: &RedisStore) -> Limiter {
    limiter(Policy::new("accounts").quota(Quota::per_hour(2)).distinct(), store)
}

fn jobs(limit: u32, lease: Duration, store: &RedisStore) -> Limiter {
    limiter(Policy::new("jobs").quota(Quota::new(limit, lease)).in_flight(), store)
}

async fn is_admitted(limiter: &Limiter, value: &str) -> bool {
    limiter.check_value("address", value).await.unwrap().is_admitted()
}

/// Returns the values of the log, and when each was last seen, in microseconds.
async fn seen(redis: &Redis) -> Vec<(Vec<u8>, f64)> {
    redis.run(&["ZRANGE", VALUES, "0", "-1", "WITHSCORES"]).await
}

/// The first check after a restart goes to a new connection, to a Redis without its data.
#[tokio::test]
async fn value_that_is_denied_after_a_loss_was_not_seen() {
    let mut redis = Redis::start().await;
    let limiter = accounts(&redis.store_without_deny_cache().await);
    assert!(is_admitted(&limiter, "alice").await && is_admitted(&limiter, "bob").await);
    redis.restart().await;
    assert!(!is_admitted(&limiter, "carol").await);
    redis.has_entries(VALUES, 2).await;
    assert!(is_admitted(&limiter, "alice").await, "carol took no place");
    redis.restart().await;
    assert_eq!(left(&limiter, "address").await, 0);
}

/// The process that saw the value earlier writes first, and after another loss last.
#[tokio::test]
async fn latest_sight_of_two_processes_survives_a_loss() {
    const BETWEEN_US: f64 = 600_000.0;
    let mut redis = Redis::start().await;
    let stores = [redis.store_without_deny_cache().await, redis.store_without_deny_cache().await];
    let [one, two] = stores.each_ref().map(accounts);
    assert!(is_admitted(&one, "alice").await);
    sleep(Duration::from_micros(BETWEEN_US as u64)).await;
    assert!(is_admitted(&two, "alice").await);
    let before = seen(&redis).await[0].1;
    redis.restart().await;
    let redis_decides = async || {
        for store in &stores {
            until_redis_decides(&probe(store)).await;
        }
    };
    redis_decides().await;
    assert!(is_admitted(&one, "bob").await);
    let by_one = seen(&redis).await[0].1;
    assert!((before - by_one - BETWEEN_US).abs() < 250_000.0, "{before} {by_one}");
    assert!(!is_admitted(&two, "carol").await);
    let by_both = seen(&redis).await[0].1;
    assert!((before - by_both).abs() < 250_000.0, "{before} {by_both}");
    redis.restart().await;
    redis_decides().await;
    assert!(is_admitted(&two, "bob").await && !is_admitted(&one, "carol").await);
    let again = seen(&redis).await[0].1;
    assert!((before - again).abs() < 250_000.0, "{before} {again}");
}

/// Both replies to a renewal are lost, and so it may not have counted.
#[tokio::test]
async fn lost_renewal_keeps_its_place() {
    const LEASE: Duration = Duration::from_secs(3);
    join_all([FailurePolicy::Closed, FailurePolicy::default()].map(async |on_failure| {
        let redis = Redis::start().await;
        let process = Far::from(&redis).await;
        let far = jobs(1, LEASE, &process.store).failure_policy(on_failure);
        let near = jobs(1, LEASE, &redis.store_without_deny_cache().await);
        let _permit = far.acquire("tenant", Duration::ZERO).await.unwrap();
        process.proxy.drop_replies_to("tenant", 2);
        eventually("a renewal is lost", async || process.proxy.dropped() == 2).await;
        let lost = Instant::now();
        while lost.elapsed() < LEASE / 2 {
            assert!(near.acquire("tenant", Duration::ZERO).await.is_err(), "{on_failure:?}");
            sleep(LEASE / 100).await;
        }
    }))
    .await;
}

/// Three processes run jobs, and one of them dies at any time: its runtime ends, and with it all that could give
/// a place back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_die_leave_their_places_for_one_lease() {
    const LIMIT: u32 = 4;
    const LEASE: Duration = Duration::from_millis(900);
    let redis = Redis::start().await;
    let (running, highest, done) = <(Arc<()>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let start = || -> Runtime {
        let process = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for seed in 0..4 {
            let (url, running) = (redis.url(), Arc::downgrade(&running));
            let (highest, done) = (highest.clone(), done.clone());
            process.spawn(async move {
                let limiter = jobs(LIMIT, LEASE, &patient_store(url).await);
                let mut random = Rng::with_seed(seed);
                loop {
                    let permit = limiter.acquire("tenant", HOUR).await.unwrap();
                    // As many as there are besides the first, wherever a process dies.
                    let job = running.upgrade().expect("the test goes on");
                    highest.fetch_max(Arc::strong_count(&job) - 1, Ordering::SeqCst);
                    sleep(Duration::from_millis(random.u64(1..1_500))).await;
                    drop(job);
                    drop(permit);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        process
    };
    let mut processes = [(); 3].map(|()| start());
    let mut random = Rng::with_seed(3);
    for _ in 0..8 {
        sleep(Duration::from_millis(random.u64(100..900))).await;
        let index = random.usize(..3);
        std::mem::replace(&mut processes[index], start()).shutdown_background();
    }
    let before = done.load(Ordering::SeqCst);
    eventually("the others go on", async || done.load(Ordering::SeqCst) > before + 8).await;
    assert_eq!(highest.load(Ordering::SeqCst), LIMIT as usize, "all places are used, and no more");
    processes.into_iter().for_each(Runtime::shutdown_background);
    let limiter = jobs(LIMIT, LEASE, &redis.store().await);
    let died = Instant::now();
    let mut permits = Vec::new();
    for _ in 0..LIMIT {
        permits.push(limiter.acquire("tenant", Duration::from_secs(10)).await.unwrap());
    }
    assert!(died.elapsed() < LEASE * 3, "{:?}", died.elapsed());
}
