//! A Redis that is slow, far away, or behind a busy process is not a dead one.

use crate::*;

/// Also the connection is made over the distance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_redis_decides() {
    let slowest = join_all([1, 30, 100, 250].map(async |distance_ms| {
        let redis = Redis::start().await;
        let proxy = Proxy::to(redis.port()).await;
        proxy.set(Fault::Delay(Duration::from_millis(distance_ms)));
        let load = Load::start(store(proxy.url()).await, FailurePolicy::default());
        sleep(WINDOW * 2).await;
        let responses = load.stop().await;
        responses.are_decisions();
        if distance_ms <= 100 {
            // Farther away the tasks of the load send too few requests for all users.
            responses.no_user_starves();
        }
        let here = responses.count(|it| it.decided_by == Some(HERE));
        assert_eq!(here, 0, "Redis decides, {distance_ms} ms away");
        assert_eq!(responses.over_admitted(), 0);
        responses.0.iter().map(|it| it.took().as_millis()).max().unwrap().to_string()
    }));
    let slowest = slowest.await.join(", ");
    let measured = format!("0 too many; the slowest responses took {slowest} ms");
    fault::report("distant_redis_decides", "0", &measured);
}

/// The opening of a sale on a machine that has other work to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saturated_process_is_no_outage() {
    let redis = Redis::start().await;
    let [user, all] = [("user", 5), ("all", 1_000_000)]
        .map(|(name, limit)| PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(limit))));
    let limiter = limiter(&user, &RedisStore::connect(redis.url()).await.unwrap());
    let end = Instant::now() + Duration::from_secs(3);
    let busy: Vec<_> =
        (0..4).map(|_| thread::spawn(move || while Instant::now() < end {})).collect();
    let checks = (0..2_000).map(|number| {
        let (limiter, user, all) = (limiter.clone(), user.clone(), all.clone());
        tokio::spawn(async move {
            let (key, sent) = (format!("user-{number}"), Instant::now());
            let decision = limiter.check_all([(&user, &*key), (&all, "all")]).await.unwrap();
            assert_eq!(verdict(&decision), (true, REDIS));
            sent.elapsed().as_millis()
        })
    });
    let took = join_all(checks.collect::<Vec<_>>()).await;
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    let slowest = took.into_iter().map(Result::unwrap).max().unwrap();
    let measured = format!("2000 decided by Redis, the slowest in {slowest} ms");
    fault::report("saturated_process_is_no_outage", "0", &measured);
}

/// The process stands still for longer than the response timeout while the reply to a call is under way.
#[tokio::test]
async fn stopped_process_is_no_outage() {
    let redis = Redis::start().await;
    let builder = RedisStore::builder().response_timeout(Duration::from_millis(300));
    let Far { proxy, store } = Far::with(builder, &redis).await;
    let limiter = limiter(user(9), &store);
    proxy.set(Fault::Delay(Duration::from_millis(150)));
    let check = tokio::spawn(async move { decided_by(&limiter, "alice").await });
    redis.has_entries(LOG, 1).await;
    thread::sleep(Duration::from_secs(1));
    assert_eq!(check.await.unwrap(), REDIS);
    assert_eq!(redis.call_count("evalsha").await, 1, "it is not repeated");
}

/// Replies become later than the response timeout, and still arrive one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_are_no_silence() {
    let redis = Redis::start().await;
    let builder = RedisStore::builder().response_timeout(Duration::from_millis(300));
    let Far { proxy, store } = Far::with(builder, &redis).await;
    let mut calls = Vec::new();
    for number in 0..150_u64 {
        proxy.set(Fault::Delay(Duration::from_millis(number.min(100) * 6)));
        let commands = store.commands();
        let call = async move { commands.query::<i64>(redis::cmd("INCR").arg("calls")).await };
        calls.push(tokio::spawn(call));
        sleep(Duration::from_millis(10)).await;
    }
    let replies = join_all(calls).await.into_iter().map(|it| it.unwrap().unwrap());
    assert_eq!(replies.max(), Some(150));
}

const CHECKS: usize = 80;

/// Sends checks one after the other, more than there are calls under way.
async fn many_checks(limiter: &Limiter) -> Vec<Result<Decision, StoreError>> {
    let mut checks = Vec::new();
    for number in 0..CHECKS {
        let limiter = limiter.clone();
        checks.push(tokio::spawn(async move { limiter.check(format!("user-{number}")).await }));
        sleep(Duration::from_millis(8)).await;
    }
    join_all(checks).await.into_iter().map(Result::unwrap).collect()
}

fn decided(results: &[Result<Decision, StoreError>], by: DecidedBy) -> usize {
    results.iter().flatten().filter(|decision| decision.decided_by() == by).count()
}

/// What has waited for a second is shed, in place of a local decision, and the next is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_that_waited_too_long_is_shed() {
    let redis = Redis::start().await;
    let store = patient_store(redis.url()).await;
    let limiter = Limiter::new(Quota::per_minute(5), store.clone());
    let mut slow = redis::cmd("EVAL");
    slow.arg(BUSY).arg(0).arg(30_000);
    // On a busy machine not all of them are there when the checks come.
    let busy = (0..60).map(|_| {
        let (commands, slow) = (store.commands(), slow.clone());
        tokio::spawn(async move { while commands.query::<i64>(&slow).await.is_ok() {} })
    });
    let busy = Vec::from_iter(busy);
    sleep(Duration::from_millis(300)).await;
    let results = many_checks(&limiter).await;
    busy.iter().for_each(JoinHandle::abort);
    let shed = results.iter().filter(|it| matches!(it, Err(StoreError::Overloaded))).count();
    let served = decided(&results, REDIS);
    assert!(shed > 0 && served >= 64 && shed + served == CHECKS, "{shed} shed, {served} served");
    assert_eq!(decided_by(&limiter, "dave").await, REDIS);
}

/// Keeps Redis busy for so many microseconds.
const BUSY: &str = "
    -- Since Redis 7.2 TIME stands still in a script, and there is a clock of Lua.
    local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
    pcall(function() now = os.clock end)
    local ends = now() + ARGV[1] / 1e6
    repeat until now() > ends
    return 1";

/// What has waited for a Redis that serves nobody is no overload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_silence_is_an_outage_for_all_that_wait() {
    let redis = Redis::start().await;
    let builder = RedisStore::builder().response_timeout(Duration::from_millis(1_500));
    let Far { proxy, store } = Far::with(builder, &redis).await;
    proxy.set(Fault::Stall);
    let results = many_checks(&limiter(user(5), &store)).await;
    assert_eq!(decided(&results, HERE), CHECKS, "{results:?}");
}

/// As behind a `TimeoutLayer`: no caller stays as long as the response timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_notice_a_silence() {
    let (_redis, process, limiter) = far(user(50)).await;
    assert!(admit(&limiter, "alice").await);
    process.proxy.set(Fault::Stall);
    for _ in 0..10 {
        let _ = timeout(Duration::from_millis(300), limiter.check("alice")).await;
    }
    let check = timeout(Duration::from_millis(300), decided_by(&limiter, "alice")).await;
    assert_eq!(check.expect("no caller waits for a dead Redis any more"), HERE);
}

/// As `buffer_unordered` does while its consumer awaits something else.
#[tokio::test]
async fn unpolled_checks_delay_no_other() {
    let redis = Redis::start().await;
    let policy: Policy = "5/60s,50/1h".parse().unwrap();
    let limiter = Limiter::new(policy, RedisStore::connect(redis.url()).await.unwrap());
    let mut unpolled = Vec::new();
    for number in 0..100 {
        let mut check = task::spawn(limiter.check(format!("user-{number}")));
        assert_pending!(check.poll());
        unpolled.push(check);
    }
    assert_eq!(decided_by(&limiter, "alice").await, REDIS);
}

/// Redis has counted the request a while after it was sent, and dies. Its window begins then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_admission_has_a_whole_window_in_an_outage() {
    let mut redis = Redis::start().await;
    let Far { proxy, store } = Far::with(patient(), &redis).await;
    let limiter = limiter("1/2s".parse::<Policy>().unwrap(), &store);
    proxy.set(Fault::Stall);
    let go_on = async {
        sleep(Duration::from_millis(700)).await;
        proxy.set(Fault::None);
        Instant::now()
    };
    let (late, counted) = tokio::join!(admit(&limiter, "alice"), go_on);
    assert!(late);
    redis.kill();
    proxy.set(Fault::Cut);
    tokio::time::sleep_until(counted + Duration::from_millis(1_600)).await;
    assert_eq!(verdict(&limiter.check("alice").await.unwrap()), (false, HERE));
    tokio::time::sleep_until(counted + Duration::from_millis(2_300)).await;
    assert!(admit(&limiter, "alice").await);
}
