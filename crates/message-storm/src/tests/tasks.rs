//! Tasks that check a group later.

use test_support::recorder::RecordedMetrics;
use tokio::time::Instant;
use tower_sliding_window::RedisStore;

use super::*;
use crate::StormDetector;
use crate::detector::check_until_answered;

/// Of two calls at once the older outcome may be reported last.
#[tokio::test(start_paused = true)]
async fn older_outcome_does_not_end_the_task_of_a_new_storm() {
    let detector = StormDetector::in_process(StormRule::new("1/10s".parse().unwrap()));
    let calls = [Some("1".into()), Some("2".into())];
    let checks = calls.map(|message| detector.0.check_of("lobby".into(), message));
    let first = detector.0.store.check(&checks[0]).await.unwrap();
    let second = detector.0.store.check(&checks[1]).await.unwrap();
    assert_eq!(detector.0.report(&checks[1], &second).events.len(), 1);
    detector.0.report(&checks[0], &first);
    assert_eq!(detector.watched(), 1);
    detector.settled().await;
    assert!(detector.peek("lobby").await.unwrap().events.is_empty(), "the task has found the end");
}

/// Nobody answers at that port. The time is that of the test, so it counts the attempts.
#[tokio::test(start_paused = true)]
async fn failed_call_is_repeated_with_growing_pauses() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let store = RedisStore::connect_lazy("redis://127.0.0.1:1").unwrap();
    let detector = StormDetector::on_redis(StormRule::new("1/10s".parse().unwrap()), &store);
    detector.peek("lobby").await.unwrap_err();
    let errors = || {
        let errors = recorded.names().into_iter().filter(|it| it.contains("store_errors"));
        errors.map(|it| recorded.count(&it)).sum::<u64>()
    };
    let (before, start) = (errors(), Instant::now());
    let check = detector.0.check_of("lobby".into(), None);
    let task = tokio::spawn(check_until_answered(Arc::downgrade(&detector.0), check));
    let mut attempts = Vec::new();
    while attempts.len() < 8 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let done = (errors() - before) as usize;
        attempts.resize(done, start.elapsed().as_millis());
    }
    let pauses: Vec<_> = attempts.windows(2).map(|two| (two[1] - two[0]).div_ceil(100)).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 50, 50], "in tenths of a second: {attempts:?}");
    drop(detector);
    task.await.unwrap();
}
