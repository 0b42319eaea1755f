//! A Redis that is slow, far away, or behind a busy process is not a dead one.

use std::future::Future;
use std::time::Duration;

use http::StatusCode;
use test_support::fault::Fault;
use test_support::load::{HttpResponse, Load, WINDOW};
use test_support::proxy::{self, Proxy};
use test_support::{Redis, patient_store};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    DecidedBy, Decision, FailurePolicy, Limiter, Policy, Quota, RedisStore, SlidingWindowLayer,
    StoreError, key,
};

const DISTANCES_MS: [u64; 4] = [1, 30, 100, 250];

fn here(it: &HttpResponse) -> bool {
    it.decided_by == Some(DecidedBy::LocalLog)
}

/// Also the connection is made over the distance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_redis_decides() {
    for (number, distance_ms) in (30..).zip(DISTANCES_MS) {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        proxy.set(proxy::Fault::Delay(Duration::from_millis(distance_ms)));
        let builder = RedisStore::builder().deny_cache(false);
        let store = builder.connect(proxy.url()).await.expect("it can be connected");
        let load = Load::start(store, FailurePolicy::default());
        sleep(WINDOW * 2).await;
        let responses = load.stop().await;
        responses.statuses(&[200, 429]);
        responses.no_user_starves();
        assert_eq!(responses.count(here), 0, "Redis decides, {distance_ms} ms away");
        assert_eq!(responses.over_admitted(), 0);
        let name = format!("none: Redis is {distance_ms} ms away");
        let fault = Fault {
            client_sees: "no difference: Redis decides",
            added_latency: "one round trip",
            ..Fault::new(number, name.leak(), "distant_redis_decides")
        };
        fault.report(&responses, 0);
    }
}

/// Sends one request for each of many users at once through a layer with two rules, and returns the
/// statuses and what decided.
async fn all_at_once(
    store: impl Store,
    users: usize,
) -> Vec<(StatusCode, Option<DecidedBy>, Duration)> {
    let everyone = Policy::new("everyone").quota(Quota::per_minute(1_000_000));
    let layer = SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), store)
        .rule(everyone, key::constant("everyone"));
    let service = layer.layer(service_fn(async |request: http::Request<String>| {
        let decided_by = request.extensions().get::<Decision>().map(Decision::decided_by);
        let mut response = http::Response::new(String::new());
        response.extensions_mut().insert(decided_by);
        Ok::<_, std::convert::Infallible>(response)
    }));
    let mut requests = JoinSet::new();
    for user in 0..users {
        let service = service.clone();
        requests.spawn(async move {
            let request = http::Request::builder().header("x-user-id", format!("user-{user}"));
            let sent = Instant::now();
            let response = service.oneshot(request.body(String::new()).unwrap()).await.unwrap();
            let decided_by = response.extensions().get::<Option<DecidedBy>>().copied().flatten();
            (response.status(), decided_by, sent.elapsed())
        });
    }
    requests.join_all().await
}

/// The opening of a sale on a machine that has other work to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saturated_process_is_no_outage() {
    const USERS: usize = 5_000;
    let redis = Redis::start().await;
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let end = Instant::now() + Duration::from_secs(3);
    let busy: Vec<_> =
        (0..4).map(|_| std::thread::spawn(move || while Instant::now() < end {})).collect();
    let responses = all_at_once(store, USERS).await;
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    let count = |status| responses.iter().filter(|it| it.0 == status).count();
    let by = |by| responses.iter().filter(|it| it.1 == Some(by)).count();
    let unavailable = count(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((count(StatusCode::OK), unavailable), (USERS, 0));
    assert_eq!((by(DecidedBy::Store), by(DecidedBy::LocalLog)), (USERS, 0));
    let slowest = responses.iter().map(|it| it.2).max().unwrap();
    let fault = Fault {
        client_sees: "no difference: Redis decides",
        added_latency: "the time for which the machine is busy",
        ..Fault::new(
            34,
            "none: 5,000 users at once, on a machine that has other work",
            "saturated_process_is_no_outage",
        )
    };
    let slowest = slowest.as_millis();
    fault.write_row(
        "0",
        &format!(
            "{USERS} responses, {unavailable} of them 503, {} decided by Redis, the slowest {slowest} ms",
            by(DecidedBy::Store)
        ),
    );
}

/// The process stands still for longer than the response timeout right after it has begun a call.
#[tokio::test]
async fn stopped_process_is_no_outage() {
    let redis = Redis::start().await;
    let store = RedisStore::builder().response_timeout(Duration::from_millis(100));
    let limiter = Limiter::new(Quota::per_minute(9), store.connect(redis.url()).await.unwrap());
    let mut check = std::pin::pin!(limiter.check("alice"));
    let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(check.as_mut().poll(cx))).await;
    assert!(begun.is_pending());
    std::thread::sleep(Duration::from_millis(400));
    let decision = check.await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::Store);
    assert_eq!(redis.call_count("evalsha").await, 1, "it is not repeated");
}

/// A command that keeps Redis busy for so long.
fn takes(time: Duration) -> redis::Cmd {
    const SCRIPT: &str = "
        local function now() local t = redis.call('TIME') return t[1] * 1e6 + t[2] end
        local ends = now() + ARGV[1]
        repeat until now() > ends
        return 1";
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(0).arg(time.as_micros() as u64);
    command
}

/// Replies become later than the response timeout, and still arrive one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_are_no_silence() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let store = RedisStore::builder().response_timeout(Duration::from_millis(300));
    let commands = store.connect(proxy.url()).await.unwrap().commands();
    let mut calls = JoinSet::new();
    for number in 0..150_u64 {
        let late_ms = number.min(100) * 6;
        proxy.set(proxy::Fault::Delay(Duration::from_millis(late_ms)));
        let commands = commands.clone();
        calls.spawn(async move { commands.query::<i64>(redis::cmd("INCR").arg("calls")).await });
        sleep(Duration::from_millis(10)).await;
    }
    let replies: Result<Vec<i64>, _> = calls.join_all().await.into_iter().collect();
    assert_eq!(replies.unwrap().iter().max(), Some(&150));
}

/// Sends checks one after the other, more than there are calls under way.
async fn many_checks(limiter: &Limiter) -> Vec<Result<Decision, StoreError>> {
    let mut checks = JoinSet::new();
    for user in 0..CHECKS {
        let limiter = limiter.clone();
        checks.spawn(async move { limiter.check(format!("user-{user}")).await });
        sleep(Duration::from_millis(8)).await;
    }
    checks.join_all().await
}

const CHECKS: usize = 80;

fn decided(results: &[Result<Decision, StoreError>], by: DecidedBy) -> usize {
    results.iter().flatten().filter(|decision| decision.decided_by() == by).count()
}

/// What has waited for a second is shed, in place of a local decision, and the next is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_that_waited_too_long_is_shed() {
    let redis = Redis::start().await;
    let store = patient_store(redis.url()).await;
    let limiter = Limiter::new(Quota::per_minute(5), store.clone());
    let commands = store.commands();
    let mut busy = JoinSet::new();
    for _ in 0..40 {
        let (commands, slow) = (commands.clone(), takes(Duration::from_millis(50)));
        busy.spawn(async move { while commands.query::<i64>(&slow).await.is_ok() {} });
    }
    sleep(Duration::from_millis(300)).await;
    let results = many_checks(&limiter).await;
    busy.shutdown().await;
    let shed = results.iter().filter(|it| matches!(it, Err(StoreError::Overloaded))).count();
    let served = decided(&results, DecidedBy::Store);
    assert!(shed > 0 && served >= 64 && shed + served == CHECKS, "{shed} shed, {served} served");
    let decision = limiter.check("dave").await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::Store);
}

/// What has waited for a Redis that serves nobody is no overload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_silence_is_an_outage_for_all_that_wait() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let store = RedisStore::builder().response_timeout(Duration::from_millis(1_500));
    let limiter = Limiter::new(Quota::per_minute(5), store.connect(proxy.url()).await.unwrap());
    proxy.set(proxy::Fault::Stall);
    let results = many_checks(&limiter).await;
    assert_eq!(decided(&results, DecidedBy::LocalLog), CHECKS, "{results:?}");
}

/// As behind a `TimeoutLayer`: no caller stays as long as the response timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_notice_a_silence() {
    let redis = Redis::start().await;
    for quotas in ["50/60s", "50/60s,500/1h"] {
        let proxy = Proxy::to(redis.port()).await;
        let store = RedisStore::builder().deny_cache(false).connect(proxy.url()).await.unwrap();
        let policy: Policy = quotas.parse().unwrap();
        let limiter = Limiter::new(policy.named("user"), store);
        assert!(limiter.check("alice").await.unwrap().is_admitted());
        proxy.set(proxy::Fault::Stall);
        for _ in 0..10 {
            let _ = timeout(Duration::from_millis(300), limiter.check("alice")).await;
        }
        let check = timeout(Duration::from_millis(300), limiter.check("alice")).await;
        let decision = check.expect("no caller waits for a dead Redis any more").unwrap();
        assert_eq!(decision.decided_by(), DecidedBy::LocalLog);
    }
}

/// As `buffer_unordered` does while its consumer awaits something else.
#[tokio::test]
async fn unpolled_checks_delay_no_other() {
    let redis = Redis::start().await;
    let policy: Policy = "5/60s,50/1h".parse().unwrap();
    let limiter = Limiter::new(policy, RedisStore::connect(redis.url()).await.unwrap());
    let mut unpolled = Vec::new();
    for number in 0..100 {
        let limiter = limiter.clone();
        let mut check = Box::pin(async move { limiter.check(format!("user-{number}")).await });
        let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(check.as_mut().poll(cx)));
        assert!(begun.await.is_pending());
        unpolled.push(check);
    }
    let decision = limiter.check("alice").await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::Store);
    drop(unpolled);
}

/// The application's own commands wait for each other, and not the limiter for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_delay_no_check() {
    let redis = Redis::start().await;
    let store = patient_store(redis.url()).await;
    let commands = store.commands();
    let mut all = JoinSet::new();
    for _ in 0..200 {
        let (commands, slow) = (commands.clone(), takes(Duration::from_millis(10)));
        all.spawn(async move { commands.query::<i64>(&slow).await });
    }
    sleep(Duration::from_millis(20)).await;
    let limiter = Limiter::new(Quota::per_minute(5), store);
    assert!(limiter.check("alice").await.unwrap().is_admitted());
    let is_served = |result: &Result<i64, StoreError>| match result {
        Ok(1) => true,
        // Where Redis is slow, what has waited for a second is shed.
        Err(StoreError::Overloaded) => false,
        other => panic!("{other:?}"),
    };
    let done = std::iter::from_fn(|| all.try_join_next()).map(Result::unwrap);
    let served = done.filter(is_served).count();
    assert!(served < 100, "64 of 200 were before the check: {served} were served");
    for result in all.join_all().await {
        is_served(&result);
    }
}

#[tokio::test]
async fn longest_timeout_is_no_overflow() {
    let redis = Redis::start().await;
    let store = RedisStore::builder().response_timeout(Duration::MAX);
    let limiter = Limiter::new(Quota::per_minute(50), store.connect(redis.url()).await.unwrap());
    let mut checks = JoinSet::new();
    for _ in 0..40 {
        let limiter = limiter.clone();
        checks.spawn(async move { limiter.check("alice").await.unwrap().is_admitted() });
    }
    assert!(checks.join_all().await.into_iter().all(|admitted| admitted));
}

/// Redis has counted the request a second after it was sent, and dies. Its window begins then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_admission_has_a_whole_window_in_an_outage() {
    let mut redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let limiter = Limiter::new("1/3s".parse::<Policy>().unwrap(), patient_store(proxy.url()).await);
    proxy.set(proxy::Fault::Stall);
    let late = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("alice").await.unwrap().is_admitted() }
    });
    sleep(Duration::from_secs(1)).await;
    let counted = Instant::now();
    proxy.set(proxy::Fault::None);
    assert!(late.await.unwrap());
    redis.kill();
    proxy.set(proxy::Fault::Cut);
    tokio::time::sleep_until(counted + Duration::from_millis(2_500)).await;
    let decision = limiter.check("alice").await.unwrap();
    assert_eq!((decision.decided_by(), decision.is_admitted()), (DecidedBy::LocalLog, false));
    tokio::time::sleep_until(counted + Duration::from_millis(3_500)).await;
    assert!(limiter.check("alice").await.unwrap().is_admitted());
}
