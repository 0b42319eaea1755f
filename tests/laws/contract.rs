//! The laws that hold on every store, in process under paused time and on a real Redis.

use test_support::acl::{May, make_user};
use test_support::tls::{self, Certificates};

use crate::costs::settled_request_takes_its_real_cost;
use crate::counting::*;

use crate::*;

/// Runs the laws on every store, and on servers that need a connection of their own kind.
macro_rules! laws {
    ($($name:ident),* $(,)?) => {
        test_support::on_every_store!($($name),*);

        /// Runs all laws at once on the same servers, each with keys of its own.
        async fn all_laws(servers: RedisServers) {
            let store = async |law: &str| {
                let builder = patient().prefix(format!("limiter:{law}")).deny_cache(false);
                builder.connect(servers.clone()).await.unwrap()
            };
            // The stores connect one after the other: all at once are too slow with TLS on a busy machine.
            tokio::join!($($name(store(stringify!($name)).await)),*);
        }
    };
}

#[tokio::test]
async fn on_a_cluster() {
    let cluster = Cluster::start().await;
    all_laws(cluster.servers()).await;
}

#[tokio::test]
async fn on_the_master_that_sentinels_name() {
    let watched = Sentinels::with_replicas(1).await;
    all_laws(watched.servers()).await;
}

#[tokio::test]
async fn with_the_least_acl_rights() {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::KeepLogs).await;
    all_laws(url.try_into().unwrap()).await;
}

#[tokio::test]
async fn over_tls() {
    let files = Certificates::make();
    let redis = Redis::start().await;
    let port = tls::in_front_of(redis.port(), &files).await;
    let url = format!("rediss://127.0.0.1:{port}");
    let error =
        RedisStore::connect(url.clone()).await.expect_err("a certificate of an unknown authority");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    let servers = RedisServers::one(url).unwrap();
    // The server wants to know its clients too.
    let trusting = servers.clone().root_certificate(files.authority.clone());
    RedisStore::connect(trusting).await.expect_err("a client without a certificate");
    let plain = RedisServers::sentinel(["redis://127.0.0.1"], "shop").unwrap();
    let unused = RedisStore::connect_lazy(plain.root_certificate(files.authority.clone()));
    assert!(matches!(unused, Err(StoreError::Configuration { .. })), "{unused:?}");
    all_laws(files.of_clients(servers)).await;
}

laws!(
    admits_exactly_the_limit,
    rules_of_one_name_and_key_all_hold,
    settled_request_takes_its_real_cost,
    check_without_a_value_is_an_error,
    permit_holds_its_place_until_it_is_dropped,
    known_value_waits_behind_nobody,
    callers_of_two_logs_wait_until_another_is_over,
);

async fn admits_exactly_the_limit(store: impl Store) {
    let limiter = limiter(Quota::per_minute(5), store);
    for left in [4, 3, 2, 1, 0] {
        assert_eq!(admitted(limiter.check("alice").await.unwrap()).remaining(), left);
    }
    for _ in 0..20 {
        assert!(!admit(&limiter, "alice").await);
    }
    assert!(admit(&limiter, "bob").await, "another key has a window of its own");
}

async fn rules_of_one_name_and_key_all_hold(store: impl Store) {
    let user = |quota| PolicyHandle::new(Policy::new("user").quota(quota));
    let two = user(Quota::per_minute(2));
    let limiter = limiter(&two, store);
    // Of one second it has another log, and of one minute the same.
    for (key, one) in [("alice", Quota::per_second(9)), ("bob", Quota::per_minute(9))] {
        let (one, mut passed) = (user(one), 0);
        for _ in 0..5 {
            let pairs = [(&one, key), (&two, key)];
            passed += usize::from(limiter.check_all(pairs).await.unwrap().is_admitted());
        }
        assert_eq!(passed, 2, "{key}: the second rule's quota holds too");
    }
}
