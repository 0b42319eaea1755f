//! Policies of one name with different windows, such as those of plans.

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Decision, Limiter, Overrides, Policy, Quota};

test_support::on_every_store!(
    shorter_window_keeps_what_a_longer_one_needs,
    removed_override_leaves_the_log,
);

const SECOND: Duration = Duration::from_secs(1);

fn limiter(quotas: &str, store: &(impl Store + Clone)) -> Limiter {
    let policy: Policy = quotas.parse().unwrap();
    Limiter::new(policy.named("user"), store.clone())
}

/// Returns the places that are left, or the time to wait.
async fn check(limiter: &Limiter, key: &str) -> Result<u32, Duration> {
    match limiter.check(key).await.unwrap() {
        Decision::Admitted(admitted) => Ok(admitted.remaining()),
        Decision::Denied(denied) => Err(denied.retry_after()),
    }
}

async fn shorter_window_keeps_what_a_longer_one_needs(store: impl Store + Clone) {
    // One quota of whole seconds, and several: different scripts decide.
    let plans = [("alice", "2/1s", "3/5s"), ("bob", "2/500ms,2/1s", "3/4s,3/5s")]
        .map(|(key, short, long)| (key, limiter(short, &store), limiter(long, &store)));
    for (key, _, long) in &plans {
        assert_eq!((check(long, key).await, check(long, key).await), (Ok(2), Ok(1)));
    }
    sleep(SECOND + SECOND / 5).await;
    for (key, short, long) in &plans {
        assert_eq!(check(short, key).await, Ok(1), "only its own window counts");
        let wait = check(long, key).await.expect_err("three are in five seconds");
        assert!(SECOND * 3 < wait && wait < SECOND * 4, "{wait:?}");
        assert_eq!(check(short, key).await, Ok(0));
        assert!(check(short, key).await.is_err());
    }
    // The log is kept for the longer window, although the shorter one was used last.
    sleep(SECOND + SECOND / 5).await;
    for (key, short, long) in &plans {
        assert!(check(long, key).await.is_err());
        assert_eq!(check(short, key).await, Ok(1));
    }
}

async fn removed_override_leaves_the_log(store: impl Store + Clone) {
    let users = Overrides::new(Policy::new("user").quota(Quota::new(3, SECOND * 60)));
    let of = |key: &str| Limiter::new(users.get(&key.into()).expect("a policy"), store.clone());
    for _ in 0..2 {
        assert!(check(&of("alice"), "alice").await.is_ok());
    }
    users.set("alice", "9/1s".parse().unwrap()).unwrap();
    sleep(SECOND + SECOND / 5).await;
    assert_eq!(check(&of("alice"), "alice").await, Ok(8));
    users.remove("alice");
    assert!(check(&of("alice"), "alice").await.is_err(), "three are in a minute");
}
