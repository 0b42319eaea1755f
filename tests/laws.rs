//! The promises that hold on both stores, in process under paused time and on a real Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::store::{RedisServers, Store};
use tower_sliding_window::{
    Decision, Key, Limiter, MemoryStore, Policy, PolicyHandle, Quota, RedisStore, StoreError,
};

/// Runs promises on a store.
macro_rules! promises {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::MemoryStore::new()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::Redis::start().await;
                super::$name(redis.store_without_deny_cache().await).await;
            })*
        }
        mod on_redis_behind_the_deny_cache {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::Redis::start().await;
                super::$name(redis.store().await).await;
            })*
        }

        /// Runs all promises on the same servers, each with keys of its own.
        async fn all_promises(servers: RedisServers) {
            $(
                println!("{}", stringify!($name));
                let builder = RedisStore::builder().prefix(concat!("limiter:", stringify!($name)));
                let builder = builder.response_timeout(Duration::from_secs(10));
                let store = builder.deny_cache(false).connect(servers.clone()).await.unwrap();
                $name(store).await;
            )*
        }
    };
}

#[tokio::test]
async fn on_a_cluster() {
    let cluster = test_support::Cluster::start().await;
    all_promises(cluster.servers()).await;
}

#[tokio::test]
async fn on_the_master_that_sentinels_name() {
    let watched = test_support::Sentinels::start().await;
    all_promises(watched.servers()).await;
}

#[tokio::test]
async fn as_a_user_who_may_do_no_more_than_the_scripts_need() {
    let redis = test_support::Redis::start().await;
    let url = test_support::acl::make_user(&redis, test_support::acl::May::KeepWindows).await;
    all_promises(url.try_into().unwrap()).await;
}

#[tokio::test]
async fn over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let files = redis_test::utils::build_keys_and_certs_for_tls(&directory);
    let (certificate, key, authority) = (&files.redis_crt, &files.redis_key, &files.ca_crt);
    let plain = test_support::Redis::start().await;
    let setting: Vec<String> = plain.run(&["CONFIG", "GET", "tls-port"]).await;
    let (port, _redis) = if setting.is_empty() {
        println!("this redis-server is built without TLS: a proxy speaks it");
        (test_support::tls::in_front_of(plain.port(), certificate, key, authority).await, plain)
    } else {
        drop(plain);
        let port = test_support::free_port();
        let mut arguments = vec!["--tls-port".to_owned(), port.to_string()];
        for (flag, file) in [
            ("--tls-cert-file", certificate),
            ("--tls-key-file", key),
            ("--tls-ca-cert-file", authority),
        ] {
            arguments.extend([flag.to_owned(), file.to_str().unwrap().to_owned()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        (port, test_support::Redis::start_with(&arguments).await)
    };
    let url = format!("rediss://127.0.0.1:{port}");
    RedisStore::connect(url.clone()).await.expect_err("a certificate that nobody vouches for");
    let servers = RedisServers::one(url).unwrap();
    // The server wants to know its clients too.
    let trusting = servers.clone().root_certificate(std::fs::read(authority).unwrap());
    RedisStore::connect(trusting.clone()).await.expect_err("a client that nobody vouches for");
    let known = trusting
        .client_certificate(std::fs::read(certificate).unwrap(), std::fs::read(key).unwrap());
    all_promises(known).await;
}

promises!(
    exactly_the_limit_is_admitted,
    a_window_slides_and_has_no_boundary_to_burst_across,
    a_denial_leaves_no_trace,
    whoever_waits_as_long_as_told_is_admitted,
    the_wait_is_right_after_the_limit_was_lowered,
    several_quotas_record_all_or_nothing,
    several_policies_record_all_or_nothing,
    the_same_window_twice_counts_once,
    rules_of_one_name_and_key_all_hold,
    cancelling_removes_that_very_entry,
    a_weight_takes_its_places_or_none,
    resetting_one_key_leaves_the_others,
    policies_of_different_names_do_not_share_windows,
    keys_may_hold_any_bytes,
    an_impossible_weight_is_an_error_and_counts_nothing,
    a_huge_weight_is_refused_before_it_costs_anything,
);

fn admitted(decision: &Decision) -> bool {
    decision.is_admitted()
}

async fn admit(limiter: &Limiter, key: &str) -> bool {
    admitted(&limiter.check(key).await.unwrap())
}

async fn retry_after(limiter: &Limiter, key: &str) -> Duration {
    match limiter.check(key).await.unwrap() {
        Decision::Denied(denied) => denied.retry_after(),
        Decision::Admitted(_) => panic!("admitted"),
    }
}

async fn exactly_the_limit_is_admitted(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(5), store);
    let mut remaining = Vec::new();
    for _ in 0..5 {
        let decision = limiter.check("alice").await.unwrap();
        remaining.push(decision.admitted().expect("within the limit").remaining());
    }
    assert_eq!(remaining, [4, 3, 2, 1, 0]);
    for _ in 0..20 {
        assert!(!admit(&limiter, "alice").await);
    }
    assert!(admit(&limiter, "bob").await, "another key has a window of its own");
}

async fn a_window_slides_and_has_no_boundary_to_burst_across(store: impl Store) {
    let limiter = Limiter::new(Quota::new(4, Duration::from_millis(2500)), store);
    assert!(admit(&limiter, "alice").await);
    tokio::time::sleep(Duration::from_millis(1000)).await;
    for _ in 0..3 {
        assert!(admit(&limiter, "alice").await);
    }
    // The first leaves; the burst of three, which a fixed window would have forgotten, does not.
    tokio::time::sleep(retry_after(&limiter, "alice").await).await;
    assert!(admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "alice").await);
}

async fn a_denial_leaves_no_trace(store: impl Store) {
    let limiter = Limiter::new(Quota::new(2, Duration::from_millis(1500)), store);
    assert!(admit(&limiter, "alice").await && admit(&limiter, "alice").await);
    let mut last = Duration::MAX;
    for _ in 0..30 {
        let wait = retry_after(&limiter, "alice").await;
        assert!(wait <= last, "hammering does not extend the wait");
        last = wait;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 2);
}

async fn whoever_waits_as_long_as_told_is_admitted(store: impl Store) {
    let limiter = Limiter::new(Quota::new(2, Duration::from_millis(300)), store);
    for _ in 0..5 {
        let wait = loop {
            if let Decision::Denied(denied) = limiter.check("alice").await.unwrap() {
                break denied.retry_after();
            }
        };
        assert!(wait <= Duration::from_millis(300));
        tokio::time::sleep(wait).await;
        assert!(admit(&limiter, "alice").await);
    }
}

async fn the_wait_is_right_after_the_limit_was_lowered(store: impl Store) {
    let policy = PolicyHandle::new(Quota::new(4, Duration::from_millis(2500)));
    let limiter = Limiter::new(policy.clone(), store);
    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    tokio::time::sleep(Duration::from_millis(1250)).await;
    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    policy.set(Quota::new(2, Duration::from_millis(2500))).unwrap();
    // The two newest alone fill the window: one of those has to leave, not the oldest.
    let wait = retry_after(&limiter, "alice").await;
    assert!(wait > Duration::from_millis(1250), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(admit(&limiter, "alice").await);
}

async fn several_quotas_record_all_or_nothing(store: impl Store) {
    let policy = Policy::new("user").quota(Quota::new(2, Duration::from_millis(1500)));
    let limiter = Limiter::new(policy.quota(Quota::per_minute(3)), store);
    assert!(admit(&limiter, "alice").await && admit(&limiter, "alice").await);
    let wait = retry_after(&limiter, "alice").await;
    assert!(wait <= Duration::from_millis(1500), "only the short quota is full");
    tokio::time::sleep(wait).await;
    assert!(admit(&limiter, "alice").await, "its denial took no place in the long one");
    let wait = retry_after(&limiter, "alice").await;
    assert!(wait > Duration::from_secs(50), "now the long one is: {wait:?}");
}

async fn several_policies_record_all_or_nothing(store: impl Store) {
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(3)));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_hour(1)));
    let limiter = Limiter::new(&user, store);
    let pairs = |name| [(&user, name), (&ip, "192.0.2.7")];

    assert!(admitted(&limiter.check_all(pairs("alice")).await.unwrap()));
    let decision = limiter.check_all(pairs("alice")).await.unwrap();
    let denied = decision.denied().expect("the ip has used its one place");
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["ip"]);
    assert!(denied.retry_after() > Duration::from_secs(3500));
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 2, "the user paid nothing");

    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    assert!(!admit(&limiter, "alice").await);
    let decision = limiter.check_all(pairs("alice")).await.unwrap();
    let denied = decision.denied().expect("both are full");
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["user", "ip"]);
    assert!(denied.retry_after() > Duration::from_secs(3500), "the longest wait");
}

async fn the_same_window_twice_counts_once(store: impl Store) {
    let policy = PolicyHandle::new(Quota::per_minute(3));
    let limiter = Limiter::new(&policy, store);
    let decision = limiter.check_all([(&policy, "alice"), (&policy, "alice")]).await.unwrap();
    assert_eq!(decision.admitted().unwrap().remaining(), 2);
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 2);
    let decision = limiter.check_all([(&policy, "alice"), (&policy, "bob")]).await.unwrap();
    assert!(admitted(&decision), "two keys under one policy are two windows");
    assert_eq!(limiter.peek("bob").await.unwrap().remaining(), 2);
}

async fn rules_of_one_name_and_key_all_hold(store: impl Store) {
    let one = PolicyHandle::new(Policy::new("user").quota(Quota::per_second(9)));
    let two = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(2)));
    let limiter = Limiter::new(&one, store);
    let mut passed = 0;
    for _ in 0..5 {
        let pairs = [(&one, "alice"), (&two, "alice")];
        passed += usize::from(admitted(&limiter.check_all(pairs).await.unwrap()));
    }
    assert_eq!(passed, 2, "the second rule's quota holds too");
}

async fn cancelling_removes_that_very_entry(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(3), store);
    let mut ids = BTreeSet::new();
    let mut decisions = Vec::new();
    for _ in 0..3 {
        let decision = limiter.check("alice").await.unwrap();
        ids.insert(decision.admitted().unwrap().id());
        decisions.push(decision);
    }
    assert_eq!(ids.len(), 3, "each request has an identity of its own");
    let middle = decisions[1].admitted().unwrap();
    assert!(limiter.cancel(middle).await.unwrap());
    assert!(!limiter.cancel(middle).await.unwrap(), "it is gone already");
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 1);
    assert!(admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "alice").await);
}

async fn a_weight_takes_its_places_or_none(store: impl Store) {
    let limiter = Limiter::new(Quota::new(5, Duration::from_millis(2000)), store);
    let heavy = limiter.check_cost("alice", 3).await.unwrap();
    assert_eq!(heavy.admitted().unwrap().remaining(), 2);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(admit(&limiter, "alice").await);

    let Decision::Denied(denied) = limiter.check_cost("alice", 3).await.unwrap() else {
        panic!("one place is free, not three");
    };
    assert_eq!(denied.usage().remaining(), 1);
    tokio::time::sleep(denied.retry_after()).await;
    let again = limiter.check_cost("alice", 3).await.unwrap();
    assert_eq!(again.admitted().unwrap().remaining(), 1);
    assert!(limiter.cancel(again.admitted().unwrap()).await.unwrap());
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 4, "all of its places are back");
}

async fn resetting_one_key_leaves_the_others(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(1), store);
    assert!(admit(&limiter, "alice").await && admit(&limiter, "bob").await);
    limiter.reset("alice").await.unwrap();
    assert!(admit(&limiter, "alice").await);
    assert!(!admit(&limiter, "bob").await);
}

async fn policies_of_different_names_do_not_share_windows(store: impl Store) {
    let store = std::sync::Arc::new(store);
    let one = Limiter::new(Policy::new("one").quota(Quota::per_minute(1)), store.clone());
    let two = Limiter::new(Policy::new("two").quota(Quota::per_minute(1)), store.clone());
    let one_again = Limiter::new(Policy::new("one").quota(Quota::per_minute(1)), store);
    assert!(admit(&one, "alice").await && admit(&two, "alice").await);
    assert!(!admit(&one_again, "alice").await, "a policy is known by its name");
}

async fn keys_may_hold_any_bytes(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(1), store);
    let long = "k".repeat(100_000);
    let keys: [&[u8]; 14] = [
        b"",
        b"=",
        b"{",
        b"}",
        b"{}",
        b"}:default:1/60s",
        b"%7D",
        b"%",
        b"a\nb",
        b"a\r\nb",
        b"\0",
        b"\0\0",
        b"\xff\xfe\x80",
        long.as_bytes(),
    ];
    for key in keys {
        let first = limiter.check(key).await.unwrap();
        assert!(admitted(&first), "{key:?} shares no window with those before it");
    }
    for key in keys {
        assert!(!admitted(&limiter.check(key).await.unwrap()), "{key:?} is remembered");
    }
    let hash = Key::from(long.as_bytes());
    assert!(admitted(&limiter.check(hash.as_bytes()).await.unwrap()), "not by its hash alone");
}

async fn an_impossible_weight_is_an_error_and_counts_nothing(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(5), store);
    let error = limiter.check_cost("alice", 6).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 6, limit: 5, .. }), "{error}");
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 5);
}

async fn a_huge_weight_is_refused_before_it_costs_anything(store: impl Store) {
    let limiter = Limiter::new(Quota::per_minute(u32::MAX), store);
    let error = limiter.check_cost("alice", u32::MAX).await.unwrap_err();
    assert!(matches!(error, StoreError::CostTooHigh { most: 1024, .. }), "{error}");
    let decision = limiter.check_cost("alice", 1024).await.unwrap();
    assert_eq!(decision.admitted().unwrap().remaining(), u32::MAX - 1024);
}
