//! What the callers see if the runtime of the task that sends their checks ends or stands still.

use std::time::Duration;

use test_support::Redis;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tower_sliding_window::store::{Outcome, Store};
use tower_sliding_window::{RedisStore, StoreError};

use super::{call_is_held_back, check, spawn};

/// How long a reply may take where a task is lost.
const TIMEOUT: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn connect(servers: &Runtime, redis: &Redis, response_timeout: Duration) -> RedisStore {
    let store = RedisStore::builder().response_timeout(response_timeout);
    servers.block_on(store.connect(redis.url())).unwrap()
}

/// Holds back a lone check on the runtime of the connection, and then one that a task on `first` has
/// sent.
fn hold_back(
    servers: &Runtime,
    first: &Runtime,
    redis: &Redis,
    store: &RedisStore,
) -> [JoinHandle<Result<Outcome, StoreError>>; 2] {
    servers.block_on(redis.run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]));
    let alone = servers.spawn(store.admit(&check("alone")));
    servers.block_on(call_is_held_back(redis));
    let taken = first.spawn(store.admit(&check("taken")));
    std::thread::sleep(TIMEOUT / 10);
    [alone, taken]
}

/// Sends checks one after the other. Only the first may have to wait for its time limit.
fn checks_go_on(servers: &Runtime, store: &RedisStore) {
    let checks = async {
        for number in 0..20 {
            let outcome = spawn(store.admit(&check(format!("new-{number}")))).await.unwrap();
            assert!(outcome.unwrap().admitted);
        }
    };
    let done = servers.block_on(async { tokio::time::timeout(8 * TIMEOUT, checks).await });
    done.expect("no check waits for the task that is lost");
}

#[test]
fn batch_outlives_its_runtime() {
    let (servers, first) = (runtime(), runtime());
    let redis = servers.block_on(Redis::start());
    let store = connect(&servers, &redis, TIMEOUT);
    let held = hold_back(&servers, &first, &redis, &store);
    first.shutdown_background();
    servers.block_on(redis.run::<()>(&["CLIENT", "UNPAUSE"]));
    checks_go_on(&servers, &store);
    drop(held);
}

#[test]
fn queued_caller_learns_that_the_task_is_gone() {
    let (servers, first) = (runtime(), runtime());
    let redis = servers.block_on(Redis::start());
    let store = connect(&servers, &redis, 60 * TIMEOUT);
    let held = hold_back(&servers, &first, &redis, &store);
    let queued = servers.spawn(store.admit(&check("queued")));
    std::thread::sleep(TIMEOUT / 10);
    first.shutdown_background();
    servers.block_on(redis.run::<()>(&["CLIENT", "UNPAUSE"]));
    // No other request comes that would start another task.
    let outcome = servers.block_on(async { tokio::time::timeout(8 * TIMEOUT, queued).await });
    assert!(outcome.expect("the task is gone").unwrap().unwrap().admitted);
    drop(held);
}

#[test]
fn unpolled_batch_delays_no_other() {
    let servers = runtime();
    let redis = servers.block_on(Redis::start());
    let store = connect(&servers, &redis, TIMEOUT);
    let unpolled = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    unpolled.block_on(async {
        redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
        for number in 0..3 {
            spawn(store.admit(&check(format!("held-{number}"))));
        }
        tokio::time::sleep(TIMEOUT / 10).await;
        redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    });
    // Nothing polls that runtime any more, and its task has taken requests.
    checks_go_on(&servers, &store);
    drop(unpolled);
}
