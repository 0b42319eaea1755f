//! What happens to requests when Redis fails: one test a fault, under load before, during and
//! after it.

#[path = "support/load.rs"]
mod load;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/redis_process.rs"]
mod redis_process;

use std::time::Duration;

use load::{Load, WINDOW};
use redis_process::RedisProcess;
use tokio::time::{Instant, sleep};
use tower_sliding_window::{DecidedBy, FailurePolicy, RedisStore};

/// A store that asks Redis about every request, so that each meets the fault.
async fn store(url: String) -> RedisStore {
    RedisStore::builder().deny_cache(false).connect(url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_empty() {
    let mut redis = RedisProcess::start().await;
    let load = Load::start(store(redis.url()).await, FailurePolicy::default());
    load.until_the_store_decides().await;
    sleep(WINDOW / 4).await;

    let killed = Instant::now();
    redis.kill();
    load.until_decided_here().await;
    sleep(WINDOW * 3 / 4).await;
    redis.start_again();
    load.until_the_store_decides().await;
    let back = Instant::now();
    sleep(WINDOW * 3 / 2).await;

    let answers = load.stop().await;
    answers.statuses(&[200, 429]);
    assert_eq!(answers.over_admitted(), 0);
    answers.nobody_starved();
    let during = answers.between(killed, back);
    let here = during.count(|it| it.decided_by == Some(DecidedBy::LocalWindow));
    println!(
        "killed: {} answers, {here} admitted here, slowest {:?}, over 50 ms {}",
        during.0.len(),
        during.slowest(),
        during.slower_than(Duration::from_millis(50))
    );
}
