//! A check whose reply is lost is sent again under its own identity and counts once.

use test_support::fault;
use test_support::fault::Fault;
use test_support::proxy::Proxy;
use test_support::{Redis, admit, patient_store};
use tokio::time::Instant;
use tower_sliding_window::{FailurePolicy, Limiter, Quota};

use crate::{Far, user};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_counts_once() {
    const TASKS: u32 = 4;
    const LOSSES: u32 = 250;
    let redis = Redis::start().await;
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let proxy = Proxy::to(redis.port()).await;
        let store = patient_store(proxy.url()).await;
        tasks.spawn(async move {
            let limiter = Limiter::new(Quota::per_hour(LOSSES + 1), store);
            let user = format!("user-{task}");
            for lost in 1..=LOSSES {
                proxy.drop_replies(1);
                let decision = limiter.check(&*user).await.unwrap();
                let remaining = decision.admitted().expect("below the limit").remaining();
                assert_eq!(proxy.dropped(), lost as usize, "the reply was lost");
                assert_eq!(remaining, LOSSES + 1 - lost, "counted exactly once");
            }
        });
    }
    tasks.join_all().await;
    for task in 0..TASKS {
        let window = format!("tsw:{{=user-{task}}}:default:{}/1h:1h", LOSSES + 1);
        assert_eq!(redis.entries(&window).await, LOSSES as usize);
    }
    Fault {
        client_sees: "no difference: the request is repeated with its UUID",
        added_latency: "a new connection and one round trip",
        ..fault!(8, "a reply lost after the script has run, 1,000 times")
    }
    .write_row(
        "0",
        &format!(
            "0 counted twice of {} losses, {:.1} ms each",
            TASKS * LOSSES,
            started.elapsed().as_secs_f64() * 1e3 / f64::from(LOSSES)
        ),
    );
}

#[tokio::test]
async fn refused_request_keeps_no_place() {
    let redis = Redis::start().await;
    let process = Far::from(&redis).await;
    let limiter = process.limiter(user(1)).failure_policy(FailurePolicy::Closed);
    for _ in 0..20 {
        // Redis counts the request, and neither of its two replies arrives.
        process.proxy.drop_replies(2);
        let _ = limiter.check("alice").await.unwrap_err();
        process.mend().await;
        assert!(admit(&limiter, "alice").await, "it is cancelled before the next is decided on");
        limiter.reset("alice").await.unwrap();
    }
}

#[tokio::test]
async fn repeated_check_gets_the_decision_of_the_first() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let limiter = Limiter::new(Quota::per_hour(1), patient_store(proxy.url()).await);
    let lookups = async || redis.call_count("zscore").await;
    assert!(limiter.check("load the script").await.unwrap().is_admitted());
    assert_eq!(lookups().await, 0, "only a repeat looks the request up");
    // The first call has filled the window: sent as a new request it would be denied.
    for (admitted, dropped) in [(true, 1), (false, 2)] {
        proxy.drop_replies(1);
        assert_eq!(limiter.check("alice").await.unwrap().is_admitted(), admitted);
        assert_eq!(proxy.dropped(), dropped);
    }
    assert_eq!(lookups().await, 2);
    redis.has_entries("tsw:{=alice}:default:1/1h:1h", 1).await;
}
