//! What is admitted in an outage, and what is written back afterwards.

use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, free_port, patient};
use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Admitted, DecidedBy, Decision, FailurePolicy, Limiter, Policy, PolicyHandle, Quota, RedisStore,
    StoreError,
};

pub(crate) const WINDOW: &str = "tsw:{=alice}:user:1h";

pub(crate) fn per_hour(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_hour(limit))
}

pub(crate) fn limiter(limit: u32, store: impl Store) -> Limiter {
    Limiter::new(per_hour(limit), store)
}

async fn connect(limit: u32, redis: &Redis) -> Limiter {
    limiter(limit, RedisStore::connect(redis.url()).await.unwrap())
}

/// Starts a server, and a limiter on it.
async fn start(limit: u32) -> (Redis, Limiter) {
    let redis = Redis::start().await;
    let limiter = connect(limit, &redis).await;
    (redis, limiter)
}

/// As [`start`], with three admissions and then a server that has forgotten them.
async fn start_and_forget(limit: u32) -> (Redis, Limiter) {
    let (mut redis, ours) = start(limit).await;
    for _ in 0..3 {
        admitted(&ours).await;
    }
    redis.start_again();
    until_redis_decides(&ours).await;
    (redis, ours)
}

pub(crate) async fn admitted(limiter: &Limiter) -> Admitted {
    match limiter.check("alice").await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

/// Checks new keys until Redis decides again.
pub(crate) async fn until_redis_decides(limiter: &Limiter) {
    eventually("Redis decides", async || {
        let key = uuid::Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == DecidedBy::Store)
    })
    .await;
}

#[tokio::test]
async fn outage_admissions_are_written_back() {
    let (mut redis, ours) = start(5).await;
    redis.kill();
    let started = std::time::SystemTime::now();
    let mut ids = Vec::new();
    for left in [4, 3, 2] {
        let admitted = admitted(&ours).await;
        assert_eq!(admitted.remaining(), left);
        ids.push(*admitted.id().as_bytes());
    }
    assert_eq!(ours.check("alice").await.unwrap().decided_by(), DecidedBy::LocalLog);
    sleep(Duration::from_millis(300)).await;
    redis.restart().await;

    redis.has_entries(WINDOW, 4).await;
    let entries: Vec<(Vec<u8>, f64)> =
        redis.run(&["ZRANGE", WINDOW, "0", "-1", "WITHSCORES"]).await;
    let since_epoch = started.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    for (id, (member, score)) in ids.iter().zip(&entries) {
        assert_eq!(&member[..], id, "the request's own identity, in the order they came");
        let late = score / 1e6 - since_epoch;
        assert!(
            (-0.05..0.25).contains(&late),
            "the timestamp is of the outage, not of the write-back: {late} s"
        );
    }
    let ttl_ms = redis.run::<i64>(&["PTTL", WINDOW]).await;
    assert!((3_590_000..=3_601_000).contains(&ttl_ms), "{ttl_ms}");

    let theirs = connect(5, &redis).await;
    assert!(theirs.check("alice").await.unwrap().is_admitted());
    assert!(!theirs.check("alice").await.unwrap().is_admitted(), "five are five");
}

#[tokio::test]
async fn emptied_redis_gets_lost_admissions_back() {
    let (redis, ours) = start_and_forget(5).await;
    admitted(&ours).await;
    redis.has_entries(WINDOW, 4).await;
    admitted(&ours).await;
    assert!(!ours.check("alice").await.unwrap().is_admitted());
}

#[tokio::test]
async fn excess_admission_of_emptied_redis_is_undone() {
    let (redis, ours) = start_and_forget(3).await;
    let Decision::Denied(denied) = ours.check("alice").await.unwrap() else { panic!("a fourth") };
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
    let wait = denied.retry_after().as_secs();
    assert!((3_590..3_600).contains(&wait), "{wait}");
    redis.has_entries(WINDOW, 3).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(redis.entries(WINDOW).await, 3, "and the fourth is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_restart_never_over_admits() {
    let mut redis = Redis::start().await;
    let builder = patient().deny_cache(false);
    let ours = limiter(3, builder.connect(redis.url()).await.unwrap());
    for _ in 0..3 {
        admitted(&ours).await;
    }
    redis.restart().await;
    // No request fails: the first is sent again on a new connection.
    for _ in 0..3 {
        assert!(!ours.check("alice").await.unwrap().is_admitted());
    }
}

#[tokio::test]
async fn excess_is_undone_beside_other_processes() {
    let (redis, ours) = start_and_forget(3).await;
    let theirs = connect(3, &redis).await;
    for _ in 0..2 {
        admitted(&theirs).await;
    }
    assert!(!ours.check("alice").await.unwrap().is_admitted(), "a fourth of this process");
}

#[tokio::test]
async fn cancellation_in_an_outage_is_kept() {
    let mut redis = Redis::start_with(&["--appendonly", "yes"]).await;
    let ours = connect(5, &redis).await;
    let before = admitted(&ours).await;
    let kept = admitted(&ours).await;
    sleep(Duration::from_millis(1_500)).await; // what Redis has is on disk after a second
    redis.kill();
    let during = admitted(&ours).await;
    assert!(ours.cancel(&before).await.unwrap());
    assert!(ours.cancel(&during).await.unwrap());
    assert!(!ours.cancel(&during).await.unwrap(), "it is there no longer");
    assert_eq!(ours.peek("alice").await.unwrap().remaining(), 4);
    redis.restart().await;
    let only_kept = async || {
        let members: Vec<Vec<u8>> = redis.run(&["ZRANGE", WINDOW, "0", "-1"]).await;
        members == [kept.id().as_bytes().to_vec()]
    };
    eventually("Redis has one request", only_kept).await;
    sleep(Duration::from_millis(300)).await;
    assert!(only_kept().await);
}

#[tokio::test]
async fn settled_in_an_outage_is_written_back() {
    let mut redis = Redis::start_with(&["--appendonly", "yes"]).await;
    let ours = connect(20, &redis).await;
    let reserve = async || match ours.check_cost("alice", 3).await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    };
    let (less, more) = (reserve().await, reserve().await);
    sleep(Duration::from_millis(1_500)).await; // what Redis has is on disk after a second
    redis.kill();
    let during = reserve().await;
    for (admitted, actual) in [(&less, 1), (&more, 5), (&during, 7), (&during, 4)] {
        assert!(ours.settle(admitted, actual).await.unwrap());
    }
    assert_eq!(ours.peek("alice").await.unwrap().remaining(), 10, "here at once");
    redis.restart().await;
    let is_settled = async || {
        let members: Vec<Vec<u8>> = redis.run(&["ZRANGE", WINDOW, "0", "-1"]).await;
        let of = |admitted: &Admitted| {
            members.iter().filter(|member| member.starts_with(admitted.id().as_bytes())).count()
        };
        [of(&less), of(&more), of(&during)] == [1, 5, 4]
    };
    eventually("Redis has the real costs", is_settled).await;
    sleep(Duration::from_millis(300)).await;
    assert!(is_settled().await);
}

#[tokio::test]
async fn service_can_start_before_redis() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let error = RedisStore::connect(url.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    RedisStore::connect_lazy("not a url").unwrap_err();

    let ours = limiter(3, RedisStore::connect_lazy(url).unwrap());
    let first = ours.check("alice").await.unwrap();
    assert_eq!(first.decided_by(), DecidedBy::LocalLog);
    let redis = Redis::start_on(port).await;
    until_redis_decides(&ours).await;
    redis.has_entries(WINDOW, 1).await;
    let second = ours.check("alice").await.unwrap();
    assert_eq!((second.decided_by(), second.usage().remaining()), (DecidedBy::Store, 1));
}

#[tokio::test]
async fn few_requests_wait_for_a_stalled_redis() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let ours = limiter(1_000_000, RedisStore::connect(proxy.url()).await.unwrap())
        .failure_policy(FailurePolicy::Closed);
    proxy.set(Fault::Stall);
    let mut waited = 0;
    for number in 0..500 {
        match ours.check(format!("user-{number}")).await.unwrap_err() {
            StoreError::Unavailable => {}
            _ => waited += 1,
        }
    }
    assert_eq!(waited, 1, "the silence opens the circuit breaker");
    proxy.set(Fault::None);
    until_redis_decides(&ours).await;
}

/// As in a program with a runtime a thread.
#[tokio::test]
async fn outage_ends_when_its_runtime_is_gone() {
    let (mut redis, ours) = start(5).await;
    redis.kill();
    let elsewhere = ours.clone();
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let decision = runtime.block_on(elsewhere.check("alice")).unwrap();
        assert_eq!(decision.decided_by(), DecidedBy::LocalLog);
    })
    .await
    .unwrap();
    redis.restart().await;
    until_redis_decides(&ours).await;
    admitted(&ours).await;
    redis.has_entries(WINDOW, 2).await;
}

/// A request under several policies has windows of several keys.
#[tokio::test]
async fn reset_in_outage_forgets_that_log_only() {
    let (mut redis, ours) = start(2).await;
    let user = PolicyHandle::new(per_hour(2));
    let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_hour(2)));
    redis.kill();
    for _ in 0..2 {
        let decision = ours.check_all([(&user, "alice"), (&ip, "192.0.2.7")]);
        assert!(decision.await.unwrap().is_admitted());
    }
    ours.reset("alice").await.unwrap_err();
    assert_eq!(ours.peek("alice").await.unwrap().remaining(), 2, "here it has worked");
    redis.start_again();
    until_redis_decides(&ours).await;
    let of_ip = "tsw:{=192.0.2.7}:ip:1h";
    redis.has_entries(of_ip, 2).await;
    assert_eq!(redis.run::<usize>(&["EXISTS", WINDOW]).await, 0);
}
