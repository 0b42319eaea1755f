//! The Redis store beyond the laws: one call a decision, keys that expire, scripts that are loaded
//! again.

use std::time::Duration;

use test_support::{Redis, Worker, patient_store};
use tower_sliding_window::{
    FailurePolicy, Limiter, Policy, PolicyHandle, Quota, RedisStore, StoreError,
};

/// Checks one key `times` times from each of several connections at once; says how many passed.
async fn flood(url: &str, connections: usize, times: usize, quota: Quota) -> usize {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let limiter = Limiter::new(quota, patient_store(url).await);
        for _ in 0..times {
            let limiter = limiter.clone();
            clients.spawn(async move { limiter.check("hot").await.unwrap().is_admitted() });
        }
    }
    clients.join_all().await.into_iter().filter(|admitted| *admitted).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_share_exactly_the_limit() {
    let redis = Redis::start().await;
    assert_eq!(flood(&redis.url(), 8, 100, Quota::per_minute(37)).await, 37);
}

/// The other process of the test below; run by it alone.
#[tokio::test]
#[ignore = "run as a process of its own by the test below"]
async fn worker_process() {
    let url = std::env::var("WORKER_REDIS_URL").expect("the test below sets it");
    println!("admitted={}", flood(&url, 2, 200, Quota::per_minute(137)).await);
}

#[tokio::test]
async fn processes_share_exactly_the_limit() {
    let redis = Redis::start().await;
    let workers = [(); 2].map(|()| Worker::start("redis::worker_process", &redis));
    let admitted = workers.map(|worker| {
        let lines = worker.lines();
        let count = lines.iter().find_map(|line| line.split_once("admitted="));
        count.unwrap_or_else(|| panic!("{lines:?}")).1.parse::<usize>().unwrap()
    });
    assert_eq!(admitted.iter().sum::<usize>(), 137, "{admitted:?}");
    assert_eq!(redis.entries("tsw:{=hot}:default:137/60s:60s").await, 137);
}

#[tokio::test]
async fn decision_is_one_script_call() {
    let redis = Redis::start().await;
    let user = PolicyHandle::new("2/1s,5/60s".parse::<Policy>().unwrap().named("user"));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_minute(100)));
    let limiter = Limiter::new(&user, redis.store_without_deny_cache().await);
    let _ = limiter.check("load the script").await.unwrap();

    redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..10 {
        let _ = limiter.check_all([(&user, "alice"), (&ip, "192.0.2.7")]).await.unwrap();
    }
    assert_eq!((redis.call_count("evalsha").await, redis.call_count("eval").await), (10, 0));
    assert_eq!(redis.call_count("time").await, 10, "the clock is read once a decision");
}

#[tokio::test]
async fn entries_are_uuids_scored_in_microseconds() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_minute(3), redis.store().await);
    let decision = limiter.check("alice").await.unwrap();
    let admitted = decision.admitted().unwrap();

    let window = "tsw:{=alice}:default:3/60s:60s";
    let entries: Vec<(Vec<u8>, String)> =
        redis.run(&["ZRANGE", window, "0", "-1", "WITHSCORES"]).await;
    let [(member, score)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(member, admitted.id().as_bytes());
    assert_eq!(*score, admitted.timestamp().unwrap().as_micros().to_string(), "no digit is lost");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.abs_diff(admitted.timestamp().unwrap()) < Duration::from_secs(60));
}

#[tokio::test]
async fn every_key_has_a_ttl_of_its_longest_window() {
    let redis = Redis::start().await;
    let policy: Policy = "2/1s,5/60s".parse().unwrap();
    let limiter = Limiter::new(policy, redis.store().await);
    for key in 0..50 {
        let _ = limiter.check(format!("user-{key}")).await.unwrap();
    }
    let keys = redis.keys().await;
    assert_eq!(keys.len(), 50);
    for key in keys {
        let ttl_ms: i64 = redis.run(&["PTTL", &key]).await;
        assert!((50_000..=61_000).contains(&ttl_ms), "{key}: {ttl_ms}");
    }
}

#[tokio::test]
async fn entry_one_window_old_cannot_be_cancelled() {
    let redis = Redis::start().await;
    let window = Duration::from_millis(200);
    let policy = Policy::new("user").quota(Quota::new(1, window));
    let limiter = Limiter::new(policy, redis.store().await);
    let old = limiter.check("alice").await.unwrap();
    tokio::time::sleep(window + window / 4).await;
    assert_eq!(redis.entries("tsw:{=alice}:user:200ms").await, 1, "it is there still");
    assert!(!limiter.cancel(old.admitted().unwrap()).await.unwrap());
}

#[tokio::test]
async fn busy_log_stays_as_long_as_its_quota() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::new(5, Duration::from_millis(30)), redis.store().await);
    let mut admitted = 0;
    while admitted < 50 {
        match limiter.check("alice").await.unwrap() {
            tower_sliding_window::Decision::Admitted(_) => admitted += 1,
            tower_sliding_window::Decision::Denied(denied) => {
                tokio::time::sleep(denied.retry_after()).await;
            }
        }
        assert!(redis.entries("tsw:{=alice}:default:5/30ms:30ms").await <= 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn script_flush_loses_and_repeats_nothing() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_hour(500), redis.store().await);
    let mut checks = tokio::task::JoinSet::new();
    for round in 0..20 {
        for _ in 0..40 {
            let limiter = limiter.clone();
            checks.spawn(async move { limiter.check("alice").await });
        }
        redis.run::<()>(&["SCRIPT", "FLUSH", if round % 2 == 0 { "SYNC" } else { "ASYNC" }]).await;
    }
    let decisions = checks.join_all().await;
    let admitted = decisions.into_iter().filter(|it| it.as_ref().unwrap().is_admitted()).count();
    assert_eq!(admitted, 500);
    assert_eq!(redis.entries("tsw:{=alice}:default:500/1h:1h").await, 500);
}

/// A script that made its members from `math.random` would repeat them after a restart.
#[tokio::test]
async fn restart_repeats_no_member() {
    let mut numbers = Vec::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        let redis = Redis::start().await;
        numbers.push(redis.run::<u64>(&["EVAL", "return math.random(1, 2^31 - 1)", "0"]).await);
        let limiter = Limiter::new(Quota::per_minute(1), redis.store().await);
        let _ = limiter.check("alice").await.unwrap();
        members.push(
            redis
                .run::<Vec<Vec<u8>>>(&["ZRANGE", "tsw:{=alice}:default:1/60s:60s", "0", "-1"])
                .await,
        );
    }
    assert_eq!(numbers[0], numbers[1], "the wrong design shows its fault");
    assert_ne!(members[0], members[1]);
}

#[tokio::test]
async fn key_of_another_type_is_an_error() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_minute(1), redis.store().await)
        .failure_policy(FailurePolicy::Closed);
    redis.run::<()>(&["SET", "tsw:{=alice}:default:1/60s:60s", "precious"]).await;
    let error = limiter.check("alice").await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { code, .. } if code == "WRONGTYPE"), "{error:?}");
    assert!(!error.to_string().contains("alice"), "{error}");
    assert_eq!(redis.run::<String>(&["GET", "tsw:{=alice}:default:1/60s:60s"]).await, "precious");
}

#[tokio::test]
async fn failed_connect_hides_the_password() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let error = RedisStore::connect(url).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let error = RedisStore::connect("not a url").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}
