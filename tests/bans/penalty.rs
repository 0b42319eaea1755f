//! Strikes: a key that keeps running into a quota is banned, for longer each time.

use std::sync::Arc;
use std::time::Duration;

use test_support::strikes::{policy, provoke, run_into};
use tokio::time::sleep;
use tower_sliding_window::store::{Check, LogId, Store, Strike};
use tower_sliding_window::{Decision, Limiter, MemoryStore, Penalty, Policy, Quota};

test_support::on_every_store!(
    each_window_of_denials_is_one_strike,
    ban_outlasts_the_window_and_ends_on_time,
    second_ban_is_longer,
    peeking_is_no_strike,
    quiet_time_lowers_the_ban_level,
);

async fn each_window_of_denials_is_one_strike(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    assert_eq!(run_into(&limiter).await, (Strike::Counted, None));
    for _ in 0..50 {
        assert_eq!(run_into(&limiter).await, (Strike::None, None), "the same episode");
    }
    sleep(Duration::from_millis(1_050)).await;
    let (strike, banned) = run_into(&limiter).await;
    assert_eq!(strike, Strike::Banned);
    assert!(banned.unwrap() > Duration::from_millis(1_500));
}

async fn ban_outlasts_the_window_and_ends_on_time(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    let ban = provoke(&limiter).await;
    sleep(Duration::from_millis(1_100)).await;
    let Decision::Denied(denied) = limiter.check("mallory").await.unwrap() else {
        panic!("the window has room, and the ban stands")
    };
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
    let left = denied.retry_after();
    assert!(left < ban && left > Duration::from_millis(400), "{left:?} of {ban:?}");
    assert!(limiter.check("alice").await.unwrap().is_admitted(), "others are not banned");
    sleep(left).await;
    assert!(limiter.check("mallory").await.unwrap().is_admitted(), "as promised");
}

async fn second_ban_is_longer(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    let first = provoke(&limiter).await;
    assert!(first <= Duration::from_secs(2) && first > Duration::from_millis(1_500), "{first:?}");
    let mut last = first;
    for _ in 0..20 {
        let (strike, left) = run_into(&limiter).await;
        let left = left.expect("banned");
        assert_eq!(strike, Strike::None);
        assert!(left <= last, "hammering does not lengthen it: {left:?} after {last:?}");
        last = left;
    }
    sleep(last).await;
    let second = provoke(&limiter).await;
    assert!(
        second <= Duration::from_secs(3) && second > Duration::from_millis(2_500),
        "{second:?}"
    );
}

async fn peeking_is_no_strike(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    for _ in 0..2 {
        assert!(limiter.check("mallory").await.unwrap().is_admitted());
    }
    for _ in 0..5 {
        assert_eq!(limiter.peek("mallory").await.unwrap().remaining(), 0);
    }
    assert_eq!(run_into(&limiter).await.0, Strike::Counted, "the first denial is the first strike");
}

async fn quiet_time_lowers_the_ban_level(store: impl Store) {
    let second = Duration::from_secs(1);
    let penalty: Penalty = "1/1m:1s,1s,1h".parse().unwrap();
    let policy = Policy::new("user").quota(Quota::per_second(2)).penalty(penalty.decay(second * 2));
    let limiter = Limiter::new(policy, store);
    for quiet in [0, 2, 0] {
        let (strike, banned) = run_into(&limiter).await;
        assert_eq!(strike, Strike::Banned);
        assert!(banned.unwrap() <= second, "an hour is only for a third ban in short time");
        sleep(second * (1 + quiet) + second / 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deny_cache_counts_strikes_too() {
    let policy = Policy::new("user").quota(Quota::per_minute(5));
    let policy = policy.penalty("100/24h:1h".parse().unwrap());
    let strikes = async |store: Arc<dyn Store>| {
        let mut strikes = 0;
        for tick in 0..3_000 {
            // All five at once, a pause that is not always the same, and then without end.
            let requests = match (tick / 600 % 2, tick % 600) {
                (_, 0) => 5,
                (0, 1..5) | (1, 1..2) => 0,
                _ => 1,
            };
            for _ in 0..requests {
                let window = LogId::new(Arc::new(policy.clone()), "mallory");
                let outcome = store.admit(&Check::new([window])).await.unwrap();
                strikes +=
                    outcome.logs().iter().filter(|it| it.ban().strike() == Strike::Counted).count();
            }
            sleep(Duration::from_millis(100)).await;
        }
        strikes
    };
    assert_eq!(strikes(Arc::new(MemoryStore::new())).await, 5, "in five minutes");
}
