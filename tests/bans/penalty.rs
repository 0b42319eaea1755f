//! Strikes: a key that keeps running into a quota is banned, for longer each time.

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::store::{Store, Strike};
use tower_sliding_window::{Decision, Limiter, Penalty, Policy, Quota};

use crate::{policy, provoke, run_into};

test_support::on_every_store!(
    each_window_of_denials_is_one_strike,
    ban_outlasts_the_window_and_the_next_is_longer,
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

async fn ban_outlasts_the_window_and_the_next_is_longer(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    for seconds in [2, 3] {
        let ban = provoke(&limiter).await;
        let length = Duration::from_secs(seconds);
        assert!(ban <= length && ban > length - Duration::from_millis(500), "{ban:?}");
        sleep(Duration::from_millis(1_100)).await;
        let mut left = ban;
        for _ in 0..20 {
            let Decision::Denied(denied) = limiter.check("mallory").await.unwrap() else {
                panic!("the window has room, and the ban stands")
            };
            assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
            assert!(denied.retry_after() <= left, "hammering does not lengthen it");
            left = denied.retry_after();
        }
        assert!(limiter.check(seconds).await.unwrap().is_admitted(), "others are not banned");
        sleep(left).await;
        assert!(limiter.check("mallory").await.unwrap().is_admitted(), "as promised");
    }
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
