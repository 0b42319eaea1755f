//! The metrics of the stores: how long calls take, how many requests share one, and what is held. And the counters of
//! decisions, whose handles are kept: which recorder gets the counts, and under which name.

use ::metrics::Unit;

use crate::*;

fn call_seconds(script: &str, outcome: &str) -> String {
    let name = "sliding_window_store_call_duration_seconds";
    format!("{name}{{script={script},outcome={outcome}}}")
}

const ADMIT_BATCHES: &str = "sliding_window_batch_size{script=admit}";
const LOGS: &str = "sliding_window_memory_logs{}";

#[tokio::test]
async fn each_call_reports_its_script_its_time_and_how_many_share_it() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let redis = Redis::start().await;
    let limiter = Limiter::new(Quota::per_hour(100), redis.store().await);
    for _ in 0..3 {
        let _ = limiter.check("alice").await.unwrap();
    }
    let one = limiter.check("alice").await.unwrap();
    limiter.cancel(one.admitted().unwrap()).await.unwrap();
    limiter.reset("alice").await.unwrap();
    let admissions = || recorded.samples(&call_seconds("admit", "ok"));
    let seconds = admissions();
    assert_eq!(seconds.len(), 4);
    assert!(seconds.iter().all(|it| (1e-6..10.0).contains(it)), "{seconds:?}");
    assert_eq!(recorded.samples(&call_seconds("reconcile", "ok")).len(), 1);
    assert_eq!(recorded.samples(&call_seconds("reset", "ok")).len(), 1);
    assert_eq!(recorded.samples(ADMIT_BATCHES), [1.0; 4]);

    let decisions = join_all((0..50_u32).map(|user| limiter.check(user))).await;
    assert!(decisions.iter().all(Result::is_ok), "{decisions:?}");
    let batches = recorded.samples(ADMIT_BATCHES);
    assert_eq!(batches.iter().sum::<f64>(), 54.0);
    assert!(batches.len() < 24 && batches.iter().all(|it| *it <= 32.0), "{batches:?}");
    assert_eq!(admissions().len(), batches.len());
}

#[tokio::test]
async fn a_failed_call_reports_its_kind() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let redis = Redis::start().await;
    let store = RedisStore::builder().response_timeout(Duration::from_millis(50));
    let limiter = Limiter::new(Quota::per_hour(100), store.connect(redis.url()).await.unwrap());
    redis.run::<()>(&["CLIENT", "PAUSE", "1000", "ALL"]).await;
    let _ = limiter.check("alice").await.unwrap();
    let timeouts = recorded.samples(&call_seconds("admit", "timeout"));
    assert!(!timeouts.is_empty() && timeouts.iter().all(|it| *it >= 0.05), "{timeouts:?}");
    assert!(recorded.names().iter().all(|it| !it.contains("alice")));
}

#[tokio::test(start_paused = true)]
async fn a_wait_reports_its_length_and_its_denial_once() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let ten = Duration::from_secs(10);
    let mail = |window| Policy::new("mail").quota(Quota::new(1, window)).keep_for(ten * 2);
    let policy = PolicyHandle::new(mail(ten));
    let limiter = Limiter::new(&policy, MemoryStore::new());
    for _ in 0..2 {
        limiter.until_admitted("alice").await.unwrap();
    }
    let denied = limiter.until_admitted_within("alice", ten / 2).await.unwrap_err();
    assert!(matches!(denied, WaitError::Denied(_)));
    let waits = |outcome: &str| {
        let name = "sliding_window_wait_duration_seconds";
        recorded.samples(&format!("{name}{{policy=mail,outcome={outcome}}}"))
    };
    assert_eq!((waits("admitted"), waits("denied")), (vec![0.0, 10.0], vec![0.0]));

    let denials = || recorded.count("sliding_window_decisions_total{policy=mail,outcome=denied}");
    let before = denials();
    let wait = limiter.until_admitted_within("alice", ten);
    let longer = async { policy.set(mail(ten * 2)).unwrap() };
    let (denied, _) = tokio::join!(wait, longer);
    assert!(matches!(denied, Err(WaitError::Denied(_))));
    assert_eq!(denials() - before, 2, "its two checks were denied, and the end is no third");
}

/// The gauge is a sum over the process, in which other tests hold a few logs too.
#[tokio::test(start_paused = true)]
async fn a_gauge_shows_the_logs() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let about = |name: &str, value: f64, more: f64| {
        let found = recorded.gauge(name);
        assert!((value * 0.98..value * 1.02 + more).contains(&found), "{name}: {found}");
    };
    let store = MemoryStore::new();
    let limiter = Limiter::new(Quota::per_minute(5), store.clone());
    for user in 0..30_000_u32 {
        let _ = limiter.check(user).await.unwrap();
    }
    about(LOGS, 30_000.0, 5_000.0);

    advance(Duration::from_secs(60)).await;
    for user in 0..12_000_u32 {
        let _ = limiter.check(user + 1_000_000).await.unwrap();
    }
    assert!(store.len() < 21_000, "each of them drops two expired ones: {}", store.len());
    about(LOGS, store.len() as f64, 5_000.0);
    for user in 0..12_000_u32 {
        limiter.reset(user + 1_000_000).await.unwrap();
    }
    assert!(store.len() < 9_000);
    about(LOGS, store.len() as f64, 5_000.0);
    drop((limiter, store));
    about(LOGS, 0.0, 5_000.0);
}

#[tokio::test]
async fn outage_is_counted_from_the_first_error_to_the_write_back() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let mut redis = Redis::start().await;
    let store = RedisStore::builder().local_capacity(1_000);
    let store = store.connect(redis.url()).await.unwrap();
    let local = Limiter::new(Policy::new("user").quota(Quota::per_hour(3)), store);
    let open = local.clone().failure_policy(FailurePolicy::Open);
    let closed = local.clone().failure_policy(FailurePolicy::Closed);
    assert!(local.check("alice").await.unwrap().is_admitted());
    let admitted = "sliding_window_decisions_total{policy=user,outcome=admitted}";
    assert_eq!(recorded.count(admitted), 1);

    redis.kill();
    for admitted in [true, true, false] {
        assert_eq!(local.check("alice").await.unwrap().is_admitted(), admitted);
    }
    let _ = open.check("alice").await.unwrap();
    closed.check("alice").await.unwrap_err();
    closed.peek("alice").await.unwrap_err();
    let full = Limiter::new(Quota::per_hour(3), MemoryStore::with_capacity(0));
    full.check("alice").await.unwrap_err();
    for (labels, count) in [
        ("local,outcome=admitted", 2),
        ("local,outcome=denied", 1),
        ("local,outcome=refused", 1),
        ("open,outcome=admitted", 1),
        ("closed,outcome=refused", 1),
    ] {
        let name = "sliding_window_fallback_decisions_total";
        let counted = recorded.count(&format!("{name}{{failure_policy={labels}}}"));
        assert_eq!(counted, count, "{labels}");
    }
    assert_eq!(recorded.count(admitted), 4, "with those of this process and of the open policy");
    assert_eq!(recorded.available(), 0.0);
    let errors = ["unreachable", "timeout", "disconnected", "unavailable"]
        .map(|it| recorded.count(&format!("sliding_window_store_errors_total{{kind={it}}}")));
    assert_eq!(errors.iter().sum::<u64>(), 5, "one a request: {errors:?}");

    let changes = || recorded.gauge("sliding_window_journal_changes{}");
    let nearly_full = || recorded.gauge("sliding_window_journal_nearly_full{}");
    let logs_nearly_full = || recorded.gauge("sliding_window_memory_nearly_full{}");
    for (users, about, full) in [(0..48_u32, 49.0..=60.0, 0.0), (48..900, 880.0..=910.0, 1.0)] {
        for user in users {
            assert!(local.check(user).await.unwrap().is_admitted());
        }
        assert!(about.contains(&changes()), "{}", changes());
        assert_eq!((nearly_full(), logs_nearly_full()), (full, full));
    }
    redis.start_again();
    eventually("all is written back", async || changes() == 0.0 && nearly_full() == 0.0).await;
    assert!(recorded.count("sliding_window_written_back_total{}") >= 902);
}

#[tokio::test(start_paused = true)]
async fn each_recorder_gets_units_and_help() {
    let limiter = Limiter::new(Quota::per_minute(1), MemoryStore::new());
    let _ = limiter.check("alice").await.unwrap();
    for _ in 0..2 {
        let (recorded, _recorder) = RecordedMetrics::listen();
        let _ = limiter.check("alice").await.unwrap();
        let all = recorded.descriptions();
        for (name, (unit, help)) in &all {
            assert!(unit.is_some() && help.ends_with('.'), "{name}: {help}");
            assert_eq!(*unit == Some(Unit::Seconds), name.ends_with("_seconds"), "{name}");
        }
        assert!(all.len() > 17, "{}", all.len());
    }
}

const DENIED: &str = "sliding_window_decisions_total{policy=user,outcome=denied}";

fn one_a_day() -> Policy {
    Policy::new("user").quota(Quota::new(1, Duration::from_secs(86_400)))
}

/// Sends requests of one user, of which at most the first is admitted.
async fn flood(limiter: &Limiter, requests: u32) {
    for _ in 0..requests {
        let _ = limiter.check("mallory").await.unwrap();
    }
}

/// Also after it has dropped the counter, as recorders do with those that are idle.
#[tokio::test(start_paused = true)]
async fn each_recorder_gets_its_own_counts() {
    let limiter = Limiter::new(one_a_day(), MemoryStore::new());
    flood(&limiter, 10).await;
    let (late, _recorder) = RecordedMetrics::listen();
    flood(&limiter, 11).await;
    {
        let (inner, _recorder) = RecordedMetrics::listen();
        flood(&limiter, 7).await;
        assert_eq!(inner.count(DENIED), 7);
    }
    let (last, _recorder) = RecordedMetrics::listen();
    flood(&limiter, 3).await;
    assert_eq!((late.count(DENIED), last.count(DENIED)), (11, 3));
    advance(Duration::from_secs(1)).await;
    last.drop_idle();
    flood(&limiter, 5).await;
    assert_eq!((late.count(DENIED), last.count(DENIED)), (11, 5));
}

#[tokio::test(start_paused = true)]
async fn another_name_is_another_counter() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let unnamed: Policy = "1/1h".parse().unwrap();
    let first = Limiter::new(unnamed.clone(), MemoryStore::new());
    flood(&first, 2).await;
    // It has counted as `default`, and now gets the names of these policies.
    let handle = PolicyHandle::new(one_a_day());
    handle.set(unnamed.clone()).unwrap();
    flood(&Limiter::new(handle, MemoryStore::new()), 3).await;
    flood(&Limiter::new(unnamed.named("group"), MemoryStore::new()), 4).await;
    let denied = |policy: &str| {
        let labels = format!("policy={policy},outcome=denied");
        recorded.count(&format!("sliding_window_decisions_total{{{labels}}}"))
    };
    assert_eq!([denied("default"), denied("user"), denied("group")], [1, 2, 3]);
}
