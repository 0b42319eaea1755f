//! What is admitted in an outage, and what is written back afterwards.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::*;

/// A request under several policies has windows of several keys. A reset meanwhile forgets one of them.
#[tokio::test]
async fn outage_admissions_are_written_back_but_for_a_reset() {
    let (mut redis, ours) = near(5).await;
    let policies = [user(5), Policy::new("ip").quota(Quota::per_hour(2))];
    let [user, ip] = policies.map(PolicyHandle::new);
    redis.kill();
    let started = SystemTime::now();
    let mut ids = Vec::new();
    for left in [4, 3, 2] {
        let admitted = admit_cost(&ours, 1).await;
        assert_eq!(admitted.remaining(), left);
        ids.push(*admitted.id().as_bytes());
    }
    assert_eq!(decided_by(&ours, "alice").await, HERE);
    for _ in 0..2 {
        let decision = ours.check_all([(&user, "bob"), (&ip, "192.0.2.7")]);
        assert!(decision.await.unwrap().is_admitted());
    }
    ours.reset("bob").await.unwrap_err();
    assert_eq!(left(&ours, "bob").await, 5, "here it has worked");
    sleep(Duration::from_millis(300)).await;
    redis.restart().await;

    redis.has_entries(LOG, 4).await;
    let entries: Vec<(Vec<u8>, f64)> = redis.run(&["ZRANGE", LOG, "0", "-1", "WITHSCORES"]).await;
    let since_epoch = started.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for (id, (member, score)) in ids.iter().zip(&entries) {
        assert_eq!(&member[..], id, "the request's own identity, in the order they came");
        let late = score / 1e6 - since_epoch;
        // The timestamp is of the outage, not of the write-back.
        assert!((-0.05..0.25).contains(&late), "{late} s");
    }
    let ttl_ms = redis.run::<i64>(&["PTTL", LOG]).await;
    assert!((3_590_000..=3_601_000).contains(&ttl_ms), "{ttl_ms}");
    redis.has_entries("tsw:{=192.0.2.7}:ip:1h", 2).await;
    assert_eq!(redis.run::<usize>(&["EXISTS", "tsw:{=bob}:user:1h"]).await, 0);

    let theirs = limiter(user, &redis.store().await);
    assert!(admit(&theirs, "alice").await);
    assert!(!admit(&theirs, "alice").await, "five are five");
}

/// Redis refuses the first of two settlements, whose reply comes after the second one was made.
#[tokio::test]
async fn last_settlement_stands() {
    let (redis, process, ours) = far(user(10).budget()).await;
    let admitted = admit_cost(&ours, 4).await;
    process.proxy.set(Fault::Delay(Duration::from_millis(300)));
    redis.command("CONFIG SET maxmemory 1").await;
    let second = async {
        sleep(Duration::from_millis(100)).await;
        redis.command("CONFIG SET maxmemory 0").await;
        ours.settle(&admitted, 10).await
    };
    let (first, second) = tokio::join!(ours.settle(&admitted, 1), second);
    assert!(first.unwrap() && second.unwrap());
    process.proxy.set(Fault::None);
    let theirs = limiter(user(10).budget(), &redis.store().await);
    for _ in 0..10 {
        assert_eq!(left(&ours, "alice").await, 0);
        assert_eq!(left(&theirs, "alice").await, 0, "it took 10");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Also one that has no mark of the prefix: a key with a log is decided there, whatever shares its call.
#[tokio::test]
async fn full_redis_decides_beside_new_keys() {
    let (redis, theirs) = near(5).await;
    for _ in 0..5 {
        assert!(admit(&theirs, "alice").await);
    }
    redis.command("DEL tsw:mark").await;
    redis.command("CONFIG SET maxmemory 1").await;
    let ours = limiter(user(5), &store(redis.url()).await);
    let before = redis.stat("total_connections_received").await;
    for number in 0..20 {
        let (new, alice) = tokio::join!(ours.check(format!("new-{number}")), ours.check("alice"));
        assert!(new.unwrap().is_admitted());
        assert_eq!(alice.unwrap().decided_by(), REDIS, "{number}");
        sleep(Duration::from_millis(100)).await;
    }
    let made = redis.stat("total_connections_received").await - before;
    assert!(made <= 2, "it keeps its connection: {made}");
}

/// Nothing has left the windows, so nothing has to be removed from them.
#[tokio::test]
async fn full_redis_decides_about_keys_that_it_has() {
    for policy in [user(20), user(20).budget()] {
        let (redis, process, ours) = far(policy).await;
        let admitted = admit_cost(&ours, 1).await;
        redis.command("CONFIG SET maxmemory 1").await;
        assert_eq!(decided_by(&ours, "alice").await, REDIS);
        assert!(ours.settle(&admitted, 2).await.unwrap());
        assert_eq!(decided_by(&ours, "alice").await, REDIS, "after a settlement");
        process.cut().await;
        assert_eq!(decided_by(&ours, "alice").await, HERE);
        process.proxy.set(Fault::None);
        until_redis_decides_about("alice", &ours).await;
    }
}

/// As when its disk is full: it refuses each write, also that of a script. It still has what denies.
#[tokio::test]
async fn redis_that_cannot_save_denies_by_what_it_has() {
    let (redis, theirs) = near(5).await;
    let policies = [user(5), Policy::new("long").quota(Quota::per_hour(5)), user(5).budget()];
    let policies = policies.map(PolicyHandle::new);
    let [log, long, budget] = [LOG, "tsw:{=alice}:long:1h", "tsw:{=alice}:user:1h:budget"];
    for policy in &policies {
        for _ in 0..5 {
            assert!(theirs.check_all([(policy, "alice")]).await.unwrap().is_admitted());
        }
    }
    // One whose ban is not known here.
    assert!(admit(&theirs, "bob").await);
    let banned = strict(user(5), "1/1h:60s");
    let bans = Bans::new(&banned, redis.store().await);
    bans.impose("bob", Duration::from_secs(600), "by hand").await.unwrap();
    // What has left the windows.
    redis.run::<()>(&["ZADD", log, "1", "one"]).await;
    let fill = "for n = 1, 300 do redis.call('ZADD', KEYS[1], n, n) end";
    redis.run::<()>(&["EVAL", fill, "1", long]).await;
    redis.run::<()>(&["ZADD", budget, "1", &"\0".repeat(24)]).await;
    redis.cannot_save().await;

    let ours = limiter(user(5), &store(redis.url()).await);
    assert_eq!(verdict(&ours.check("carol").await.unwrap()), (true, HERE));
    let checks = policies.iter().map(|policy| (policy, "alice")).chain([(&banned, "bob")]);
    for check in checks {
        let (new, denied) = tokio::join!(ours.check("dave"), ours.check_all([check]));
        assert_eq!(new.unwrap().decided_by(), HERE);
        assert_eq!(verdict(&denied.unwrap()), (false, REDIS));
    }
    // Also on a new connection, which finds that nothing was lost.
    redis.command("CLIENT KILL TYPE normal SKIPME no").await;
    for _ in 0..15 {
        assert_eq!(verdict(&theirs.check("alice").await.unwrap()), (false, REDIS));
        sleep(Duration::from_millis(100)).await;
    }
    // An admission would have to be written.
    assert_eq!(verdict(&ours.check("bob").await.unwrap()), (true, HERE));
}

/// A replica that can't save says so, and not that it is one.
#[tokio::test]
async fn replica_that_cannot_save_does_not_decide() {
    let redis = Redis::start().await;
    let master = redis.start_replica().await;
    let stores = [store(redis.url()).await, store(redis.url()).await];
    let [ours, theirs] = stores.map(|store| limiter(user(5), &store));
    for _ in 0..5 {
        assert!(admit(&theirs, "alice").await);
    }
    assert!(!admit(&ours, "alice").await, "what denies is there");
    redis.cannot_save().await;
    // It keeps its data, for the new master has the same.
    master.command("REPLICAOF NO ONE").await;
    redis.command(&format!("REPLICAOF 127.0.0.1 {}", master.port())).await;
    eventually("it is left", async || decided_by(&ours, "alice").await == HERE).await;
}

#[tokio::test]
async fn service_can_start_before_redis() {
    let mut redis = Redis::start().await;
    let url = redis.url();
    redis.kill();
    let error = RedisStore::connect(url.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    RedisStore::connect_lazy("not a url").unwrap_err();

    let ours = limiter(user(3), &RedisStore::connect_lazy(url).unwrap());
    assert_eq!(decided_by(&ours, "alice").await, HERE);
    redis.start_again();
    until_redis_decides(&ours).await;
    redis.has_entries(LOG, 1).await;
    let second = ours.check("alice").await.unwrap();
    assert_eq!((second.decided_by(), second.usage().remaining()), (REDIS, 1));
}

#[tokio::test]
async fn first_checks_wait_for_the_first_connection() {
    let redis = Redis::start().await;
    // The longest timeout is no overflow.
    let builder = RedisStore::builder().response_timeout(Duration::MAX);
    let ours = limiter(user(1_000), &builder.connect_lazy(redis.url()).unwrap());
    let checks = (0..300).map(|_| decided_by(&ours, "alice"));
    assert_eq!(join_all(checks).await, [REDIS; 300]);
    redis.has_entries(LOG, 300).await;
}

#[tokio::test(start_paused = true)]
async fn clock_that_is_paused_is_named() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let error = RedisStore::connect(url).await.unwrap_err();
    assert!(error.to_string().contains("tokio's clock is paused"), "{error}");
}

/// Of an outage longer than the window each key has requests that expire.
#[tokio::test]
async fn expired_requests_are_counted() {
    let mut redis = Redis::start().await;
    let (recorded, _recorder) = RecordedMetrics::listen();
    let brief = Policy::new("user").quota(Quota::new(1, Duration::from_millis(500)));
    let ours = limiter(brief, &RedisStore::connect(redis.url()).await.unwrap());
    redis.kill();
    for key in 0..50 {
        assert!(ours.check(key.to_string()).await.unwrap().is_admitted());
    }
    let expired = async || recorded.count("sliding_window_write_back_lost_total{}") == 50;
    eventually("all have expired", expired).await;
}

/// What decides is what is explained: the logs of this process, its share of them, or the failure policy.
#[tokio::test]
async fn outage_is_explained() {
    let (mut redis, ours) = near(3).await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let with = |limit, on_failure| limiter(user(limit).budget(), &store).failure_policy(on_failure);
    let (open, closed) = (with(1, FailurePolicy::Open), with(1, FailurePolicy::Closed));
    let before = admit_cost(&ours, 1).await;
    admit_cost(&open, 1).await;
    assert!(!open.explain("alice").await.unwrap().admitted);
    redis.kill();
    let during = admit_cost(&ours, 1).await;
    let explained = ours.explain("alice").await.unwrap();
    assert_eq!(explained.decided_by, HERE);
    let ids: Vec<_> = explained.quotas[0].admissions.iter().map(|it| it.id).collect();
    assert_eq!(ids, [before.id(), during.id()]);

    let explained = open.explain("alice").await.unwrap();
    assert!(explained.admitted, "{explained:?}");
    assert_eq!(explained.decided_by, DecidedBy::FailurePolicy);
    let error = closed.explain("alice").await.unwrap_err();
    assert!(!matches!(error, StoreError::CostAboveLimit { .. }), "{error}");
    let share = with(9, FailurePolicy::local(3));
    admit_cost(&share, 1).await;
    let explained = share.explain("alice").await.unwrap();
    assert_eq!((explained.quotas[0].quota, explained.quotas[0].free), (Quota::per_hour(3), 1));
    let error = share.explain_cost("alice", 4).await.unwrap_err();
    assert!(error.retry_after() > Some(Duration::ZERO), "above the share, not the limit: {error}");

    redis.start_again();
    until_redis_decides(&ours).await;
    let explained = async || {
        let explained = ours.explain("alice").await.unwrap();
        (explained.decided_by, explained.quotas[0].free)
    };
    assert_eq!(explained().await, (REDIS, 1));
    admit_cost(&ours, 1).await;
    redis.has_entries(LOG, 3).await;
    assert_eq!(explained().await, (REDIS, 0));
}

/// Redis loses its data, which the process finds when the connection of an explanation breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_after_a_loss_is_not_that_of_an_empty_log() {
    let (redis, far, limiter) = far(user(1)).await;
    assert!(admit(&limiter, "alice").await);
    redis.run::<()>(&["FLUSHALL"]).await;
    far.proxy.drop_replies_to(LOG, 1);
    let explained = limiter.explain("alice").await.unwrap();
    assert_eq!((explained.decided_by, explained.admitted), (REDIS, false));
}

/// Nothing but a page that shows what is left uses the store.
#[tokio::test]
async fn look_notices_a_flush() {
    let (redis, limiter) = near(5).await;
    assert!(admit(&limiter, "alice").await);
    redis.command("FLUSHALL").await;
    eventually("it is known", async || left(&limiter, "alice").await == 4).await;
}

/// A denial by Redis is known. It must not be forgotten because another key is decided here meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_denial_stays_one_in_an_outage() {
    let (mut redis, theirs) = near(1).await;
    let ours = limiter(user(1), &RedisStore::connect(redis.url()).await.unwrap());
    assert!(admit(&theirs, "alice").await);
    assert!(!admit(&ours, "alice").await, "known from now on, for a second");
    redis.kill();
    assert!(!admit(&ours, "alice").await, "still known");
    assert!(admit(&ours, "bob").await, "decided here");
    assert!(!admit(&ours, "alice").await, "the second in an hour");
}

/// Redis knows that the log of a user is full, which this process does not. What fails is another key.
#[tokio::test]
async fn denial_by_redis_stands_whatever_fails_after_it() {
    let redis = Redis::start().await;
    let (ours, theirs) = (redis.store().await, redis.store().await);
    let values = |name| PolicyHandle::new(Policy::new(name).quota(Quota::per_hour(1)).distinct());
    let (users, others, seen) = (strict(user(300), "3/10m:1h"), values("other"), values("seen"));
    let theirs = limiter(&users, &theirs);
    for _ in 0..300 {
        admit_cost(&theirs, 1).await;
    }
    let seen = || LogCost::from((&seen, "alice")).value("iphone");
    assert!(theirs.check_all([seen()]).await.unwrap().is_admitted());
    for (fails, restored) in [
        // The strike is the first write of a call that removes nothing.
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("SET tsw:{=alice}:user:strikes text", "DEL tsw:{=alice}:user:strikes"),
        ("SET tsw:{=alice}:other:1h:distinct text", "DEL tsw:{=alice}:other:1h:distinct"),
    ] {
        redis.command(fails).await;
        let logs = [(&users, "alice"), (&others, "alice")].map(LogCost::from);
        let logs = logs.into_iter().map(|log| log.value("pixel"));
        // Not sooner: to remove from it what has left it is a write.
        let logs = logs.chain(fails.contains("distinct").then(seen));
        let decision = Limiter::new(&users, ours.clone()).check_all(logs).await.unwrap();
        let denied = decision.denied().unwrap_or_else(|| panic!("admitted after {fails}"));
        assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"], "{fails}");
        assert_eq!(decision.decided_by(), REDIS, "{fails}");
        assert!(denied.usage().logs().all(|(_, log)| log.is_read()), "not from memory: {fails}");
        redis.command(restored).await;
    }
}

/// The journal holds three requests. To cancel one of them changes what is there, and a denial by the log of this process adds
/// nothing.
#[tokio::test]
async fn cancellation_and_denial_need_no_room_in_a_full_journal() {
    let mut redis = Redis::start().await;
    let store = RedisStore::builder().local_capacity(3).connect(redis.url()).await.unwrap();
    let limiter = limiter(user(2), &store);
    redis.kill();
    let first = admit_cost(&limiter, 1).await;
    admit_cost(&limiter, 1).await;
    assert!(admit(&limiter, "bob").await);
    let full = limiter.check("bob").await.unwrap_err();
    assert!(matches!(full, StoreError::Full { .. }), "{full}");
    let denied = limiter.check("alice").await.expect("a denial");
    let wait = denied.denied().expect("two are two").retry_after();
    assert!(wait > Duration::from_secs(3_590), "{wait:?}");
    assert!(limiter.cancel(&first).await.unwrap());
    redis.start_again();
    until_redis_decides(&limiter).await;
    redis.has_entries(LOG, 1).await;
}

/// There is no room for the log of another user. That of all users is there, and must not lack what Redis has admitted.
#[tokio::test]
async fn outage_refuses_a_key_without_room_and_counts_it_for_all() {
    let mut redis = Redis::start().await;
    let store = RedisStore::builder().local_capacity(2).connect(redis.url()).await.unwrap();
    let [users, all] =
        [user(2), Policy::new("all").quota(Quota::per_hour(3))].map(PolicyHandle::new);
    let (ours, of_all) = (limiter(&users, &store), limiter(&all, &store));
    for key in ["alice", "bob", "carol"] {
        let decision = ours.check_all([(&users, key), (&all, "everyone")]).await.unwrap();
        assert!(decision.is_admitted(), "Redis has room for all");
    }
    redis.kill();
    assert!(admit(&ours, "alice").await);
    assert!(!admit(&ours, "alice").await);
    assert!(!admit(&of_all, "everyone").await, "three are three");
    let error = ours.check("carol").await.unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 2 }), "{error:?}");
    assert!(admit(&ours.failure_policy(FailurePolicy::Open), "carol").await);
}

/// More has left the window of a budget than one call counts out, and Redis can't write down how much it has counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_can_not_count_out_a_budget_does_not_decide() {
    join_all(["CONFIG SET maxmemory 1", "REPLICAOF 127.0.0.1 1"].map(async |fails| {
        let redis = Redis::start().await;
        let brief = Quota::new(10_000, Duration::from_secs(3));
        let policy = user(10_000).quota(brief).budget();
        let ours = limiter(policy, &store(redis.url()).await);
        for _ in 0..1_100 {
            admit_cost(&ours, 1).await;
        }
        sleep(Duration::from_millis(3_100)).await;
        redis.command(fails).await;
        let before = redis.call_count("evalsha").await;
        let check = timeout(Duration::from_secs(3), ours.check("alice")).await;
        let calls = redis.call_count("evalsha").await - before;
        let decision = check.unwrap_or_else(|_| panic!("no decision, {calls} calls")).unwrap();
        assert_eq!(verdict(&decision), (true, HERE));
    }))
    .await;
}
