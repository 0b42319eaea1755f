//! Histories that broke a law once: replies, losses, outages, resets and bans in an unlucky order.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, admit, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_sliding_window::store::{Check, LogId, Store};
use tower_sliding_window::{
    Bans, DecidedBy, Decision, FailurePolicy, Limiter, Policy, PolicyHandle, Quota, RedisStore,
};

fn user(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_hour(limit))
}

async fn store(url: String) -> RedisStore {
    RedisStore::builder().deny_cache(false).connect(url).await.unwrap()
}

async fn admitted(limiter: &Limiter, cost: u32) -> tower_sliding_window::Admitted {
    match limiter.check_cost("alice", cost).await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

/// Returns once `limiter` has noticed that Redis was flushed.
async fn flush_and_notice(redis: &Redis, limiter: &Limiter) {
    redis.run::<()>(&["FLUSHALL"]).await;
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        let _ = limiter.check("somebody else").await;
        sleep(Duration::from_millis(20)).await;
    }
}

/// A reply from before a loss is received after the loss was noticed, and after the log was
/// reconciled. It is admitted, and no reconciliation ever writes it.
#[tokio::test]
async fn late_reply_from_before_a_loss_is_written_back() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(user(4), store(redis.url()).await);
    assert!(admit(&limiter, "alice").await);
    {
        let mut late = pin!(limiter.check("alice"));
        poll_fn(|cx| {
            assert!(late.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        redis.has_entries("tsw:{=alice}:user:1h", 2).await;
        flush_and_notice(&redis, &limiter).await;
        assert!(admit(&limiter, "alice").await);
        assert_eq!(redis.entries("tsw:{=alice}:user:1h").await, 2, "the first and the third");
        assert!(late.await.unwrap().is_admitted(), "the second");
    }
    // Three are admitted.
    let mut total = 3;
    for _ in 0..4 {
        total += u32::from(admit(&limiter, "alice").await);
    }
    assert_eq!(total, 4);
}

/// A request that was settled in an outage is not written to a Redis that comes back empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settled_in_outage_is_written_to_an_empty_redis() {
    let mut redis = Redis::start().await;
    let limiter = Limiter::new(user(10), store(redis.url()).await);
    let first = admitted(&limiter, 6).await;
    redis.kill();
    assert!(limiter.settle(&first, 5).await.unwrap());
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 5, "here");
    redis.start_again();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let left = limiter.peek("alice").await.unwrap().remaining();
        assert_eq!(left, 5, "after {:?}", began.elapsed());
        sleep(Duration::from_millis(1)).await;
    }
    let decision = limiter.check_cost("alice", 6).await.unwrap();
    assert!(!decision.is_admitted(), "5 and 6 are more than 10: {decision:?}");
}

/// Requests that are older than the window less 50 ms are not written back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_about_to_leave_are_written_back_after_a_loss() {
    const WINDOW: Duration = Duration::from_secs(2);
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let limiter =
        Limiter::new(Policy::new("user").quota(Quota::new(3, WINDOW)), store(proxy.url()).await);
    assert!(admit(&limiter, "warm up").await);
    for _ in 0..3 {
        assert!(admit(&limiter, "alice").await);
    }
    // The last one was admitted before this instant.
    let entries: Vec<(Vec<u8>, f64)> =
        redis.run(&["ZRANGE", "tsw:{=alice}:user:2s", "0", "-1", "WITHSCORES"]).await;
    let leave_us = entries[0].1 + WINDOW.as_micros() as f64;
    sleep(Duration::from_millis(1_700)).await;
    // All connections break and the data is lost, as in a failover.
    proxy.set(Fault::Cut);
    redis.run::<()>(&["FLUSHALL"]).await;
    proxy.set(Fault::None);
    let now_us = || {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros()
            as f64
    };
    while now_us() < leave_us - 30_000.0 {
        let key = uuid::Uuid::new_v4().to_string();
        let _ = limiter.check(key).await;
        sleep(Duration::from_millis(1)).await;
    }
    let decision = limiter.check("alice").await.unwrap();
    assert!(now_us() < leave_us, "this machine is too slow");
    assert!(!decision.is_admitted(), "the fourth within {WINDOW:?}: {decision:?}");
}

async fn until_redis_decides(limiter: &Limiter) {
    eventually("Redis decides", async || {
        let key = uuid::Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == DecidedBy::Store)
    })
    .await;
}

async fn until_local(limiter: &Limiter) {
    eventually("the process decides", async || {
        let key = uuid::Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == DecidedBy::LocalLog)
    })
    .await;
}

/// What was admitted in an outage after a reset by another process is not counted if the replies
/// of the write take longer than the time between the two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admitted_after_a_reset_elsewhere_counts() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let ours = Limiter::new(user(2), store(proxy.url()).await);
    let theirs = Limiter::new(user(2), store(redis.url()).await);
    assert!(admit(&ours, "warm up").await);
    proxy.set(Fault::Cut);
    until_local(&ours).await;
    theirs.reset("alice").await.unwrap();
    sleep(Duration::from_millis(100)).await;
    for _ in 0..2 {
        assert!(admit(&ours, "alice").await);
    }
    proxy.set(Fault::Delay(Duration::from_millis(250)));
    until_redis_decides(&ours).await;
    proxy.set(Fault::None);
    sleep(Duration::from_millis(1_500)).await;
    assert!(!admit(&ours, "alice").await, "the third since the reset");
    assert!(!admit(&theirs, "alice").await, "the third since the reset");
}

/// A denial by Redis is known, and Redis would deny for an hour. Because another key was
/// decided here meanwhile, it is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_denial_stays_one_in_an_outage() {
    let mut redis = Redis::start().await;
    let theirs = Limiter::new(user(1), store(redis.url()).await);
    let ours = Limiter::new(user(1), RedisStore::connect(redis.url()).await.unwrap());
    assert!(admit(&theirs, "alice").await);
    assert!(!admit(&ours, "alice").await, "known from now on, for a second");
    let began = Instant::now();
    redis.kill();
    assert!(!admit(&ours, "alice").await, "still known");
    assert!(admit(&ours, "bob").await, "decided here");
    let is_admitted = admit(&ours, "alice").await;
    assert!(began.elapsed() < Duration::from_millis(700), "too slow");
    assert!(!is_admitted, "the second in an hour");
}

/// The reply to a call with many quotas does not fit on the stack of Lua. By then all
/// requests are recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_call_leaves_no_trace_of_what_it_refuses() {
    let redis = Redis::start().await;
    let store = store(redis.url()).await;
    let policies: Vec<PolicyHandle> =
        (0..16)
            .map(|number| {
                let policy = Policy::new(format!("policy-{number}"));
                PolicyHandle::new((1..=20).fold(policy, |it, n| {
                    it.quota(Quota::new(1_000, Duration::from_secs(600 * n)))
                }))
            })
            .collect();
    let limiter = Limiter::new(&policies[0], store).failure_policy(FailurePolicy::Closed);
    let mut tasks = JoinSet::new();
    for _ in 0..256 {
        let (limiter, policies) = (limiter.clone(), policies.clone());
        tasks.spawn(async move {
            let logs = policies.iter().map(|policy| (policy, "alice"));
            limiter.check_all(logs).await
        });
    }
    let results = tasks.join_all().await;
    let admitted = results.iter().filter(|it| it.as_ref().is_ok_and(|it| it.is_admitted())).count();
    let log = policies[0].get().log_name().to_owned();
    assert_eq!(redis.entries(&format!("tsw:{{=alice}}:{log}")).await, admitted);
}

/// Checks of one log, all begun after a loss was noticed. One of them takes note of the loss of the
/// log, and before it tells the journal, another goes to Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_check_overtakes_the_reconciliation() {
    const KEYS: usize = 300;
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    for round in 0..20 {
        let limiter = Limiter::new(user(1), store(proxy.url()).await);
        for key in 0..KEYS {
            assert!(admit(&limiter, &format!("{round}-{key}")).await);
        }
        proxy.set(Fault::Cut);
        until_local(&limiter).await;
        redis.run::<()>(&["FLUSHALL"]).await;
        proxy.set(Fault::None);
        until_redis_decides(&limiter).await;
        let mut tasks = JoinSet::new();
        for key in 0..KEYS {
            for _ in 0..6 {
                let limiter = limiter.clone();
                tasks.spawn(async move { limiter.check(format!("{round}-{key}")).await });
            }
        }
        let more: Vec<_> = tasks
            .join_all()
            .await
            .into_iter()
            .filter_map(|it| it.ok()?.admitted().map(|it| format!("{it:?}")))
            .collect();
        assert!(more.is_empty(), "round {round}: {} {more:#?}", more.len());
    }
}

/// This process imposes a ban while the reply to an earlier check waits to be read. In an
/// outage the ban is forgotten.
#[tokio::test]
async fn ban_outlives_an_earlier_admission() {
    let mut redis = Redis::start().await;
    let store = store(redis.url()).await;
    let policy = user(5).penalty("3/10m:1h".parse().unwrap());
    let limiter = Limiter::new(policy.clone(), store.clone());
    let bans = Bans::new(policy, store);
    {
        let mut early = pin!(limiter.check("mallory"));
        poll_fn(|cx| {
            assert!(early.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        redis.has_entries("tsw:{=mallory}:user:1h", 1).await;
        bans.impose("mallory", Duration::from_secs(3_600), "sells accounts").await.unwrap();
        assert!(early.await.unwrap().is_admitted(), "before the ban");
    }
    redis.kill();
    assert!(!admit(&limiter, "mallory").await, "banned for an hour");
}

/// Logs that can't be written delay the write-back of all others: of 128 logs in half a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_cannot_be_written_delay_no_other() {
    const KEYS: usize = 4_000;
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let limiter = Limiter::new(user(1), store(proxy.url()).await);
    assert!(admit(&limiter, "warm up").await);
    for key in (0..KEYS).step_by(40) {
        redis.run::<()>(&["LPUSH", &format!("tsw:{{=user-{key}}}:user:1h"), "x"]).await;
    }
    proxy.set(Fault::Cut);
    until_local(&limiter).await;
    for key in 0..KEYS {
        assert!(admit(&limiter, &format!("user-{key}")).await);
    }
    proxy.set(Fault::None);
    until_redis_decides(&limiter).await;
    sleep(Duration::from_secs(3)).await;
    let written = redis.keys().await.iter().filter(|it| it.contains("user-")).count();
    assert_eq!(written, KEYS, "three seconds after Redis is back");
}

/// A request that was settled is repeated in an outage. The write-back sets it to the cost
/// of the check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_check_in_an_outage_keeps_the_settled_cost() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let store = store(proxy.url()).await;
    let limiter = Limiter::new(user(5), store.clone());
    let mut check = Check::new([LogId::new(limiter.policy(), "alice")]);
    assert!(store.admit(&check).await.unwrap().admitted);
    assert!(store.settle(&check, 5).await.unwrap());
    proxy.set(Fault::Cut);
    until_local(&limiter).await;
    check.repeated = true;
    assert!(store.admit(&check).await.unwrap().admitted, "it was admitted already");
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 0, "here");
    proxy.set(Fault::None);
    until_redis_decides(&limiter).await;
    sleep(Duration::from_millis(700)).await;
    assert_eq!(redis.entries("tsw:{=alice}:user:1h").await, 5);
    assert!(!admit(&limiter, "alice").await, "five are taken");
}

/// After a loss, each request of a banned key writes its whole log and its ban again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn banned_key_is_reconciled_once_after_a_loss() {
    let mut redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let policy = user(50).penalty("3/10m:1h".parse().unwrap());
    let limiter = Limiter::new(policy.clone(), store.clone());
    let bans = Bans::new(policy, store.clone());
    for _ in 0..20 {
        assert!(admit(&limiter, "mallory").await);
    }
    bans.impose("mallory", Duration::from_secs(3_600), "sells accounts").await.unwrap();
    assert!(!admit(&limiter, "mallory").await);
    redis.restart().await;
    until_redis_decides(&limiter).await;
    // What was known from before is forgotten.
    sleep(Duration::from_millis(1_100)).await;
    let calls = async || redis.call_count("evalsha").await + redis.call_count("eval").await;
    let (before, entries, began) =
        (calls().await, redis.call_count("zscore").await, Instant::now());
    for _ in 0..100 {
        assert!(!admit(&limiter, "mallory").await);
    }
    let (made, took) = (calls().await - before, began.elapsed());
    let entries = redis.call_count("zscore").await - entries;
    assert!(made <= 5 + 3 * took.as_secs(), "{made} calls and {entries} entries in {took:?}");
}
