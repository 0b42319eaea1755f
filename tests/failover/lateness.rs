//! A Redis that is slow, far away, or behind a busy process is not a dead one.

use crate::*;

/// Also the connection is made over the distance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_redis_decides() {
    let mut distances = JoinSet::new();
    for (number, distance_ms) in (30..).zip([1, 30, 100, 250]) {
        distances.spawn(async move {
            let redis = Redis::start().await;
            let proxy = Proxy::to(redis.port()).await;
            proxy.set(proxy::Fault::Delay(Duration::from_millis(distance_ms)));
            let load = Load::start(store(proxy.url()).await, FailurePolicy::default());
            sleep(WINDOW * 2).await;
            let responses = load.stop().await;
            responses.are_decisions();
            responses.no_user_starves();
            let here = responses.count(|it| it.decided_by == Some(DecidedBy::LocalLog));
            assert_eq!(here, 0, "Redis decides, {distance_ms} ms away");
            assert_eq!(responses.over_admitted(), 0);
            let name = format!("none: Redis is {distance_ms} ms away");
            let fault = fault!(number, name.leak()).sees("no difference: Redis decides");
            fault.adds("one round trip").report(&responses, 0);
        });
    }
    distances.join_all().await;
}

/// The opening of a sale on a machine that has other work to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saturated_process_is_no_outage() {
    const USERS: usize = 2_000;
    let redis = Redis::start().await;
    let [user, all] = [("user", 5), ("all", 1_000_000)]
        .map(|(name, limit)| PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(limit))));
    let limiter = limiter(&user, &RedisStore::connect(redis.url()).await.unwrap());
    let end = Instant::now() + Duration::from_secs(3);
    let busy: Vec<_> =
        (0..4).map(|_| std::thread::spawn(move || while Instant::now() < end {})).collect();
    let mut checks = JoinSet::new();
    for number in 0..USERS {
        let (limiter, user, all) = (limiter.clone(), user.clone(), all.clone());
        checks.spawn(async move {
            let (key, sent) = (format!("user-{number}"), Instant::now());
            let decision = limiter.check_all([(&user, &*key), (&all, "all")]).await;
            (decision, sent.elapsed())
        });
    }
    let decisions = checks.join_all().await;
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    for (decision, _) in &decisions {
        let decision = decision.as_ref().unwrap();
        assert!(decision.is_admitted() && decision.decided_by() == DecidedBy::Store);
    }
    let slowest = decisions.iter().map(|(_, took)| took.as_millis()).max().unwrap();
    fault!(34, "none: 2,000 users at once, on a machine that has other work")
        .sees("no difference: Redis decides")
        .adds("the time for which the machine is busy")
        .write_row("0", &format!("{USERS} decided by Redis, the slowest in {slowest} ms"));
}

/// The process stands still for longer than the response timeout right after it has begun a call.
#[tokio::test]
async fn stopped_process_is_no_outage() {
    let redis = Redis::start().await;
    let store = RedisStore::builder().response_timeout(Duration::from_millis(100));
    let limiter = Limiter::new(Quota::per_minute(9), store.connect(redis.url()).await.unwrap());
    let mut check = task::spawn(limiter.check("alice"));
    assert_pending!(check.poll());
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(check.await.unwrap().decided_by(), DecidedBy::Store);
    assert_eq!(redis.call_count("evalsha").await, 1, "it is not repeated");
}

/// A command that keeps Redis busy for so long.
fn takes(time: Duration) -> redis::Cmd {
    const SCRIPT: &str = "
        -- Since Redis 7.2 TIME stands still in a script, and there is a clock of Lua.
        local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
        pcall(function() now = os.clock end)
        local ends = now() + ARGV[1] / 1e6
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
    // On a busy machine not all of them are there when the checks come.
    for _ in 0..60 {
        let (commands, slow) = (commands.clone(), takes(Duration::from_millis(50)));
        busy.spawn(async move { while commands.query::<i64>(&slow).await.is_ok() {} });
    }
    sleep(Duration::from_millis(300)).await;
    let results = many_checks(&limiter).await;
    busy.shutdown().await;
    let shed = results.iter().filter(|it| matches!(it, Err(StoreError::Overloaded))).count();
    let served = decided(&results, DecidedBy::Store);
    assert!(shed > 0 && served >= 64 && shed + served == CHECKS, "{shed} shed, {served} served");
    assert_eq!(limiter.check("dave").await.unwrap().decided_by(), DecidedBy::Store);
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
    let (_redis, process, limiter) = far(user(50)).await;
    assert!(admit(&limiter, "alice").await);
    process.proxy.set(proxy::Fault::Stall);
    for _ in 0..10 {
        let _ = timeout(Duration::from_millis(300), limiter.check("alice")).await;
    }
    let check = timeout(Duration::from_millis(300), limiter.check("alice")).await;
    let decision = check.expect("no caller waits for a dead Redis any more").unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::LocalLog);
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
        let mut check = task::spawn(async move { limiter.check(format!("user-{number}")).await });
        assert_pending!(check.poll());
        unpolled.push(check);
    }
    assert_eq!(limiter.check("alice").await.unwrap().decided_by(), DecidedBy::Store);
    drop(unpolled);
}

/// Redis has counted the request a while after it was sent, and dies. Its window begins then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_admission_has_a_whole_window_in_an_outage() {
    let mut redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let limiter = Limiter::new("1/2s".parse::<Policy>().unwrap(), patient_store(proxy.url()).await);
    proxy.set(proxy::Fault::Stall);
    let late = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("alice").await.unwrap().is_admitted() }
    });
    sleep(Duration::from_millis(700)).await;
    let counted = Instant::now();
    proxy.set(proxy::Fault::None);
    assert!(late.await.unwrap());
    redis.kill();
    proxy.set(proxy::Fault::Cut);
    tokio::time::sleep_until(counted + Duration::from_millis(1_600)).await;
    let decision = limiter.check("alice").await.unwrap();
    assert_eq!((decision.decided_by(), decision.is_admitted()), (DecidedBy::LocalLog, false));
    tokio::time::sleep_until(counted + Duration::from_millis(2_300)).await;
    assert!(admit(&limiter, "alice").await);
}
