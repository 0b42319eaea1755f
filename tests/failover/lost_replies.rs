//! A check whose reply is lost is sent again under its own identity and counts once.

use crate::*;

/// The last one has filled the window: decided anew it would be denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_counts_once() {
    const LOSSES: u32 = 250;
    let redis = Redis::start().await;
    let started = Instant::now();
    join_all(["a", "b", "c", "d"].map(async |user| {
        let Far { proxy, store } = Far::with(patient(), &redis).await;
        let limiter = limiter(crate::user(LOSSES), &store);
        for lost in 1..=LOSSES {
            proxy.drop_replies(1);
            let remaining = admitted(limiter.check(user).await.unwrap()).remaining();
            assert_eq!(proxy.dropped(), lost as usize, "the reply was lost");
            assert_eq!(remaining, LOSSES - lost, "counted exactly once");
        }
        let log = format!("tsw:{{={user}}}:user:1h");
        assert_eq!(redis.entries(&log).await, LOSSES as usize);
    }))
    .await;
    let each_ms = started.elapsed().as_secs_f64() * 1e3 / f64::from(LOSSES);
    let measured = format!("0 counted twice of {} losses, {each_ms:.1} ms each", 4 * LOSSES);
    fault::report("lost_reply_counts_once", "0", &measured);
}

#[tokio::test]
async fn refused_request_keeps_no_place() {
    let (_redis, process, limiter) = far(user(1)).await;
    let limiter = limiter.failure_policy(FailurePolicy::Closed);
    for _ in 0..20 {
        // Redis counts the request, and neither of its two replies arrives.
        process.proxy.drop_replies(2);
        let _ = limiter.check("alice").await.unwrap_err();
        process.mend().await;
        assert!(admit(&limiter, "alice").await, "it is cancelled before the next is decided on");
        limiter.reset("alice").await.unwrap();
    }
}

/// Whether or not its layer lets requests wait.
#[tokio::test]
async fn request_whose_reply_is_lost_is_cancelled_by_its_response() {
    let redis = Redis::start().await;
    for (user, max_wait) in [("alice", Duration::ZERO), ("bob", Duration::from_secs(9))] {
        let Far { proxy, store } = Far::with(patient(), &redis).await;
        let layer = by_user(crate::user(1), store).max_wait(max_wait);
        let layer = layer.failure_policy(FailurePolicy::Open).cancel_if(|_| true);
        proxy.drop_replies(2);
        assert_eq!(status(&layer.layer(service_fn(ok)), user).await, 200);
        assert_eq!(proxy.dropped(), 2, "it counts, and by the policy it passes");
        let log = format!("tsw:{{={user}}}:user:1h");
        eventually("it counts no more", async || redis.entries(&log).await == 0).await;
    }
}

/// Another process admits a request before the caller learns that nobody knows whether the log was emptied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_emptied_once_if_the_reply_is_lost() {
    let (redis, far, ours) = far(user(1)).await;
    let theirs = limiter(user(1), &store(redis.url()).await);
    // Else the reply that is lost would say that Redis lacks the script.
    ours.reset("somebody else").await.unwrap();
    let mut most = 0;
    for number in 0..20 {
        let key = format!("user-{number}");
        assert!(admit(&theirs, &key).await);
        far.proxy.drop_replies_to(":reset", 1);
        let (theirs, at) = (theirs.clone(), key.clone());
        let checks = tokio::spawn(async move {
            let (began, mut admitted) = (Instant::now(), 0);
            while began.elapsed() < Duration::from_millis(100) {
                admitted += usize::from(admit(&theirs, &at).await);
            }
            admitted
        });
        let _ = ours.reset(key.as_str()).await;
        most = most.max(checks.await.unwrap());
    }
    assert_eq!(most, 1, "after one reset");
}
