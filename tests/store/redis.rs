//! The Redis store beyond the laws: one call a decision, what a log is, which policies share it, and errors that say
//! what to change.

use std::net::TcpListener;

use crate::*;

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
    assert_eq!(redis.call_count("zscore").await, 0, "only a repeat looks the request up");
}

#[tokio::test]
async fn server_that_may_evict_logs_is_warned_of() {
    let warnings_with = async |arguments: &[&str]| {
        let redis = Redis::start_with(arguments).await;
        let warnings = Warnings::listen();
        redis.store().await;
        warnings.lines()
    };
    let lines = warnings_with(&["--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"]).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("volatile-lru") && lines[0].contains("noeviction"), "{lines:?}");
    let never = ["--maxmemory", "64mb", "--maxmemory-policy", "noeviction"];
    assert!(warnings_with(&never).await.is_empty());
    let unbounded = ["--maxmemory-policy", "allkeys-lru"];
    assert!(warnings_with(&unbounded).await.is_empty(), "it has no reason to evict");
}

/// No check could ever connect.
#[tokio::test]
async fn error_of_wrong_servers_says_what_to_change() {
    const FORM: &str = "write redis://HOST:PORT";
    const PASSWORD: &str = "in a password write / @ # ? %";
    let (none, url) = ([""; 0], |url: &str| RedisServers::try_from(url));
    let one = url("redis://127.0.0.1:6379").unwrap();
    let stray = one.clone().master_credentials(None, Some("hunter2".to_owned()));
    assert!(RedisStore::connect_lazy(one.master_credentials(None, None)).is_ok());
    for (servers, part) in [
        (url("127.0.0.1:6379"), FORM),
        (url("localhost:6379"), FORM),
        (url("localhost"), FORM),
        (url("redis://127.0.0.1:6379/first"), FORM),
        (url("redis://:a/b@127.0.0.1:6379"), PASSWORD),
        (url("redis://:a#b@127.0.0.1"), PASSWORD),
        (url("redis://:a?b@127.0.0.1"), PASSWORD),
        (url("rediss://127.0.0.1:6379/#insecure"), "#insecure"),
        (RedisServers::cluster(none), "the list of servers is empty"),
        (RedisServers::sentinel(none, "shop"), "the list of servers is empty"),
        (Ok(stray), "master_credentials"),
    ] {
        let error = servers.and_then(RedisStore::connect_lazy).unwrap_err();
        assert!(matches!(error, StoreError::Configuration { .. }), "{error:?}");
        assert_eq!(error.retry_after(), None, "another attempt would fail, too");
        let error = error.to_string();
        assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
    }
}

/// Each process would decide nearly all by itself, and nobody would know.
#[tokio::test]
async fn url_of_a_node_or_a_sentinel_names_what_to_use() {
    let (cluster, redis) = (Cluster::start().await, Redis::start().await);
    let sentinel = Sentinel::start(redis.port()).await;
    let node = (cluster.nodes[0].url(), "a node of a Cluster: use RedisServers::cluster");
    let sentinel = (sentinel.server.url(), "a Sentinel: use RedisServers::sentinel");
    for (url, part) in [node, sentinel] {
        let error = RedisStore::connect(url).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn refused_connection_names_the_server_and_no_password() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = RedisStore::connect(format!("redis://admin:hunter2@{free}")).await.unwrap_err();
    assert!(error.to_string().contains(&free.to_string()), "{error}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("admin") && !text.contains("hunter2"), "{text}");
    }
}

/// The `redis` crate says the same of all of these.
#[tokio::test]
async fn failed_login_names_each_reason() {
    let redis = Redis::start().await;
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port());
    let error = RedisStore::connect(url).await.unwrap_err().to_string();
    for reason in [&redis.port().to_string(), "password is wrong", "has none", "maxclients"] {
        assert!(error.contains(reason), "{error}");
    }
}

const A_MINUTE: Duration = Duration::from_secs(60);

fn policy(quotas: &str) -> Policy {
    quotas.parse::<Policy>().unwrap().named("user")
}

async fn admit(store: &(impl Store + Clone), policy: Policy) -> Option<Admitted> {
    Limiter::new(policy, store.clone()).check("alice").await.unwrap().admitted().cloned()
}

on_every_store!(another_name_or_retention_has_another_log, request_without_a_log_is_admitted);

async fn request_without_a_log_is_admitted(store: impl Store + Clone) {
    let limiter = Limiter::new(Quota::per_minute(1), store).failure_policy(FailurePolicy::Closed);
    let none: [(Quota, &str); 0] = [];
    let decision = limiter.check_all(none).await.unwrap();
    assert!(decision.is_admitted() && decision.decided_by() == DecidedBy::Store);
    assert!(limiter.until_admitted_all(|| none, None).await.is_ok());
    assert!(limiter.check("alice").await.unwrap().is_admitted());
}

async fn another_name_or_retention_has_another_log(store: impl Store + Clone) {
    let other = || policy("1/60s").named("other");
    for policy in [policy("1/60s"), policy("1/1h"), other()] {
        assert!(admit(&store, policy).await.is_some());
    }
    for policy in [policy("1/60s"), policy("1/1h"), other()] {
        assert!(admit(&store, policy).await.is_none());
    }
}

#[tokio::test]
async fn log_lives_for_its_retention() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    for (policy, log, retention_ms) in [
        (policy("3/1s"), "tsw:{=alice}:user:1s", 1_000),
        (policy("3/900ms,3/1500ms"), "tsw:{=alice}:user:1500ms", 1_500),
        (policy("3/1s").keep_for(A_MINUTE), "tsw:{=alice}:user:60s", 60_000),
    ] {
        let admitted = admit(&store, policy.clone()).await.unwrap();
        let ttl_ms: i64 = redis.run(&["PTTL", log]).await;
        let (least, most) = (retention_ms + 500, retention_ms + 1_001);
        assert!((least..=most).contains(&ttl_ms), "{log}: {ttl_ms}");
        Limiter::new(policy, store.clone()).cancel(&admitted).await.unwrap();
        assert_eq!(redis.run::<i64>(&["EXISTS", log]).await, 0, "it has no entry");
    }
    let busy = || policy("1/20ms");
    for _ in 0..20 {
        while admit(&store, busy()).await.is_none() {
            sleep(A_MINUTE / 10_000).await;
        }
        assert_eq!(redis.entries("tsw:{=alice}:user:20ms").await, 1, "the others have left it");
    }
}

#[tokio::test]
async fn marks_last_as_long_as_what_they_keep_away() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let with_strikes = policy("1/60s").penalty("2/1h:1h".parse().unwrap());
    for _ in 0..2 {
        let _ = admit(&store, with_strikes.clone()).await;
    }
    let ttl_ms: i64 = redis.run(&["PTTL", "tsw:{=alice}:user:strikes"]).await;
    assert!((3_599_001..=3_601_000).contains(&ttl_ms), "a strike counts for an hour: {ttl_ms}");
    let policy = policy("1/60s").penalty(Penalty::manual());
    Limiter::new(policy.clone(), store.clone()).reset("alice").await.unwrap();
    Bans::new(policy, store).lift("alice").await.unwrap();
    for (mark, seconds) in [("60s:reset", 61), ("lifted", 365 * 24 * 3600)] {
        let ttl_ms: i64 = redis.run(&["PTTL", &format!("tsw:{{=alice}}:user:{mark}")]).await;
        let most = seconds * 1_000;
        assert!((most - 20_000..=most).contains(&ttl_ms), "{mark}: {ttl_ms}");
    }
}

/// Otherwise each day of use would end in a loss.
#[tokio::test]
async fn mark_of_the_data_lasts_while_redis_is_used() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_minute(9_999), redis.store().await);
    let _ = limiter.check("alice").await.unwrap();
    redis.run::<()>(&["PEXPIRE", "tsw:mark", "60000"]).await;
    eventually("it is renewed", async || {
        let _ = limiter.check("alice").await.unwrap();
        redis.run::<i64>(&["PTTL", "tsw:mark"]).await > 60_000
    })
    .await;
}

/// A controller may change a window again and again while the log of a key lives.
#[tokio::test]
async fn budget_keeps_sums_for_few_windows() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    for second in 1..=100 {
        let quota = Quota::new(1_000, Duration::from_secs(1_000 + second));
        let policy = Policy::new("tokens").quota(quota).keep_for(Duration::from_secs(3_600));
        let limiter = Limiter::new(policy.budget(), store.clone());
        let remaining = admit_cost(&limiter, 3).await.remaining();
        assert_eq!(u64::from(remaining), 1_000 - 3 * second);
    }
    let log = "tsw:{=alice}:tokens:1h:budget";
    let [sums]: [Vec<u8>; 1] = redis.run(&["ZRANGE", log, "0", "0"]).await;
    assert_eq!(sums.len(), 64 * 24);
}

/// As an operator may, who knows no other way to reset a key.
#[tokio::test]
async fn deleted_log_of_a_budget_is_empty() {
    let redis = Redis::start().await;
    let policy = Policy::new("tokens").quota(Quota::per_hour(10)).budget();
    let limiter = Limiter::new(policy, redis.store_without_deny_cache().await);
    let check = async || limiter.check_cost("alice", 10).await.unwrap();
    assert!(check().await.is_admitted());
    redis.run::<()>(&["DEL", "tsw:{=alice}:tokens:1h:budget"]).await;
    assert!(check().await.is_admitted());
    let denied = check().await;
    assert!(denied.denied().is_some_and(|it| it.retry_after() > Duration::from_secs(3_500)));
}

/// What Redis stands still for is bounded: 500,000 entries would take it some 150 ms.
#[tokio::test]
async fn entries_that_leave_together_are_removed_in_parts() {
    let redis = Redis::start().await;
    let policy = Policy::new("user").quota(Quota::new(600_000, Duration::from_secs(3)));
    let limiter = Limiter::new(policy, redis.store().await);
    let fill = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] - 3000000
        for n = 1, 20000 do redis.call('ZADD', KEYS[1], now - n, string.format('%016d', n)) end";
    redis.run::<()>(&["EVAL", fill, "1", "tsw:{=alice}:user:3s"]).await;
    assert!(limiter.check("alice").await.unwrap().is_admitted());
    assert_eq!(redis.entries("tsw:{=alice}:user:3s").await, 20_001 - 257);
}
