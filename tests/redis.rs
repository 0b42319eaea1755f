//! What the Redis store promises beyond the laws: one decision a call for a whole fleet, keys that
//! go when they are no longer needed, scripts that come back.

use std::sync::Arc;
use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::store::{Admission, Check, KnownLog, Partition, Store};
use tower_sliding_window::{
    FailurePolicy, Limiter, Policy, PolicyHandle, Quota, RedisStore, StoreError,
};

/// Checks one key `times` times from each of several connections at once; says how many passed.
async fn flood(url: &str, connections: usize, times: usize, quota: Quota) -> usize {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let builder = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let limiter = Limiter::new(quota, builder.connect(url).await.unwrap());
        for _ in 0..times {
            let limiter = limiter.clone();
            clients.spawn(async move { limiter.check("hot").await.unwrap().is_admitted() });
        }
    }
    clients.join_all().await.into_iter().filter(|admitted| *admitted).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_at_once_are_admitted_exactly_to_the_limit() {
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
async fn two_processes_at_once_are_admitted_exactly_to_the_limit() {
    let redis = Redis::start().await;
    let workers = [redis.spawn_worker(), redis.spawn_worker()];
    let admitted = workers.map(|worker| {
        let output = worker.wait_with_output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let count = output.lines().find_map(|line| line.split_once("admitted="));
        count.unwrap_or_else(|| panic!("{output}")).1.parse::<usize>().unwrap()
    });
    assert_eq!(admitted.iter().sum::<usize>(), 137, "{admitted:?}");
    assert_eq!(redis.run::<usize>(&["ZCARD", "tsw:{=hot}:default:137/60s"]).await, 137);
}

#[tokio::test]
async fn a_decision_is_one_script_call() {
    let redis = Redis::start().await;
    let user = PolicyHandle::new("2/1s,5/60s".parse::<Policy>().unwrap().named("user"));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_minute(100)));
    let limiter = Limiter::new(&user, redis.store_without_deny_cache().await);
    let _ = limiter.check("load the script").await.unwrap();

    redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..10 {
        let _ = limiter.check_all([(&user, "alice"), (&ip, "192.0.2.7")]).await.unwrap();
    }
    let stats: String = redis.run(&["INFO", "commandstats"]).await;
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map(|line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap())
    };
    assert_eq!(calls("evalsha"), Some(10), "{stats}");
    assert_eq!(calls("eval"), None, "{stats}");
    assert_eq!(calls("time"), Some(10), "the clock is read once a decision: {stats}");
}

#[tokio::test]
async fn entries_are_16_byte_members_stamped_in_microseconds() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_minute(3), redis.store().await);
    let decision = limiter.check("alice").await.unwrap();
    let admitted = decision.admitted().unwrap();

    let window = "tsw:{=alice}:default:3/60s";
    let entries: Vec<(Vec<u8>, String)> =
        redis.run(&["ZRANGE", window, "0", "-1", "WITHSCORES"]).await;
    let [(member, score)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(member, admitted.id().as_bytes());
    assert_eq!(*score, admitted.stamp().unwrap().as_micros().to_string(), "no digit is lost");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.abs_diff(admitted.stamp().unwrap()) < Duration::from_secs(60));
}

#[tokio::test]
async fn every_key_has_a_ttl_of_its_longest_window() {
    let redis = Redis::start().await;
    let policy: Policy = "2/1s,5/60s".parse().unwrap();
    let limiter = Limiter::new(policy, redis.store().await);
    for key in 0..50 {
        let _ = limiter.check(format!("user-{key}")).await.unwrap();
    }
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert_eq!(keys.len(), 50);
    for key in keys {
        let ttl_ms: i64 = redis.run(&["PTTL", &key]).await;
        assert!((50_000..=61_000).contains(&ttl_ms), "{key}: {ttl_ms}");
    }
}

/// The script for most requests takes a longer TTL for a sign that the clock has stepped back.
#[tokio::test]
async fn a_window_has_the_same_ttl_whichever_script_has_written_it() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1000)));
    let question = || Check::new([Partition::new(policy.clone(), "alice")]);
    for script in ["admit.lua", "admit_all.lua", "restore.lua"] {
        let mut longest_ms = 0;
        for _ in 0..20 {
            let mut check = question();
            check.wants_stamp = script == "admit_all.lua";
            if script == "restore.lua" {
                let known = KnownLog::new(vec![Admission::new(check.id, 1, Duration::ZERO)]);
                store.restore(&check.partitions[0], &known).await.unwrap();
            } else {
                assert!(store.admit(&Arc::new(check)).await.unwrap().admitted);
            }
            // Before this look some milliseconds may pass.
            longest_ms = redis.run::<i64>(&["PTTL", "tsw:{=alice}:user"]).await.max(longest_ms);
            redis.run::<i64>(&["DEL", "tsw:{=alice}:user"]).await;
        }
        assert!((60_500..=60_999).contains(&longest_ms), "{script}: {longest_ms}");
    }
}

#[tokio::test]
async fn a_longer_window_keeps_what_it_denies_for() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    for script in ["admit.lua", "admit_all.lua"] {
        let admit = async |policy: &str| {
            let policy = Arc::new(policy.parse::<Policy>().unwrap().named("user"));
            let mut check = Check::new([Partition::new(policy, script)]);
            check.wants_stamp = script == "admit_all.lua";
            store.admit(&Arc::new(check)).await.unwrap().admitted
        };
        assert!(admit("1/1s").await && !admit("1/60s").await);
        let ttl_ms: i64 = redis.run(&["PTTL", &format!("tsw:{{={script}}}:user")]).await;
        assert!((59_000..=60_999).contains(&ttl_ms), "{script}: {ttl_ms}");
    }
}

#[tokio::test]
async fn an_entry_one_window_old_can_t_be_cancelled() {
    let redis = Redis::start().await;
    let window = Duration::from_millis(200);
    let policy = Policy::new("user").quota(Quota::new(1, window));
    let limiter = Limiter::new(policy, redis.store().await);
    let old = limiter.check("alice").await.unwrap();
    tokio::time::sleep(window + window / 4).await;
    assert_eq!(redis.run::<usize>(&["ZCARD", "tsw:{=alice}:user"]).await, 1, "it is there still");
    assert!(!limiter.cancel(old.admitted().unwrap()).await.unwrap());
}

#[tokio::test]
async fn a_window_that_has_run_out_leaves_nothing_behind() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::new(2, Duration::from_millis(50)), redis.store().await);
    let _ = limiter.check("alice").await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while redis.run::<usize>(&["EXISTS", "tsw:{=alice}:default:2/50ms"]).await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "the key stays");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_busy_window_holds_no_more_than_its_longest_quota() {
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
        assert!(redis.run::<usize>(&["ZCARD", "tsw:{=alice}:default:5/30ms"]).await <= 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flushing_the_scripts_in_mid_flight_loses_and_repeats_nothing() {
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
    assert_eq!(redis.run::<usize>(&["ZCARD", "tsw:{=alice}:default:500/1h"]).await, 500);
}

/// A script that made its members from `math.random` would repeat them after a restart.
#[tokio::test]
async fn a_restarted_server_does_not_repeat_the_members() {
    let mut numbers = Vec::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        let redis = Redis::start().await;
        numbers.push(redis.run::<u64>(&["EVAL", "return math.random(1, 2^31 - 1)", "0"]).await);
        let limiter = Limiter::new(Quota::per_minute(1), redis.store().await);
        let _ = limiter.check("alice").await.unwrap();
        members.push(
            redis.run::<Vec<Vec<u8>>>(&["ZRANGE", "tsw:{=alice}:default:1/60s", "0", "-1"]).await,
        );
    }
    assert_eq!(numbers[0], numbers[1], "the wrong design shows its fault");
    assert_ne!(members[0], members[1]);
}

#[tokio::test]
async fn a_prefix_keeps_fleets_apart() {
    let redis = Redis::start().await;
    let connection = redis.connection().await;
    let limiter = |prefix: &str| {
        let store = RedisStore::builder().prefix(prefix).connection(connection.clone());
        Limiter::new(Quota::per_minute(1), store)
    };
    assert!(limiter("shop").check("alice").await.unwrap().is_admitted());
    assert!(limiter("forum").check("alice").await.unwrap().is_admitted());
    assert!(!limiter("shop").check("alice").await.unwrap().is_admitted());
}

#[test]
#[should_panic(expected = "`prefix` has a brace")]
fn a_prefix_cannot_move_the_keys_to_other_slots() {
    let _ = RedisStore::builder().prefix("a{b}");
}

#[tokio::test]
async fn a_key_of_another_type_is_a_clear_error_and_stays_as_it_was() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_minute(1), redis.store().await)
        .failure_policy(FailurePolicy::Closed);
    redis.run::<()>(&["SET", "tsw:{=alice}:default:1/60s", "precious"]).await;
    let error = limiter.check("alice").await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { code, .. } if code == "WRONGTYPE"), "{error:?}");
    assert!(!error.to_string().contains("alice"), "{error}");
    assert_eq!(redis.run::<String>(&["GET", "tsw:{=alice}:default:1/60s"]).await, "precious");
}

#[tokio::test]
async fn connecting_to_nothing_fails_clearly_and_hides_the_password() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let error = RedisStore::connect(url).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let error = RedisStore::connect("not a url").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}
