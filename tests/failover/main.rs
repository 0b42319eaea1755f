//! While Redis fails, and when it returns.

mod bans;
#[cfg(target_os = "linux")]
mod clock;
mod cluster;
mod counting;
mod faults;
mod histories;
mod lateness;
mod lost_replies;
mod masters;
mod node_faults;
mod outage;
mod policies;
mod recovery;
mod runtimes;
mod soak;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use fastrand::Rng;
use test_support::fault::TIMEOUT_ONCE;
use test_support::load::{LIMIT, Load, Responses, USERS, WINDOW, user_policy};
use test_support::proxy::{Fault, Proxy};
use test_support::recorder::RecordedMetrics;
use test_support::requests::*;
use test_support::warnings::Warnings;
use test_support::*;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_test::{assert_pending, task};
use tower::{Layer, service_fn};
use tower_sliding_window::store::{Check, LogId, Store};
use tower_sliding_window::*;
use uuid::Uuid;

/// The log of [`user`] and the key `alice`.
const LOG: &str = "tsw:{=alice}:user:1h";

fn user(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_hour(limit))
}

fn limiter(policy: impl Into<PolicyHandle>, store: &(impl Store + Clone)) -> Limiter {
    Limiter::new(policy, store.clone())
}

/// A store without the deny cache: a denial that is remembered for a second would hide what Redis says.
async fn store<T>(servers: T) -> RedisStore
where
    T: TryInto<RedisServers>,
    StoreError: From<T::Error>,
{
    RedisStore::builder().deny_cache(false).connect(servers).await.unwrap()
}

/// Checks new keys until Redis decides about them, or until the process does.
async fn until_decided_by(decided_by: DecidedBy, limiter: &Limiter) {
    eventually(&format!("decided by {decided_by:?}"), async || {
        let key = Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == decided_by)
    })
    .await;
}

async fn until_redis_decides(limiter: &Limiter) {
    until_decided_by(DecidedBy::Store, limiter).await;
}

/// Checks another key for as long as a process needs to notice that Redis has lost its data.
async fn notice_a_loss(limiter: &Limiter) {
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        let _ = limiter.check("somebody else").await;
        sleep(Duration::from_millis(20)).await;
    }
}

/// Checks another key until the process, which is the only one, has noticed that Redis was flushed: it has left its mark anew.
async fn notice_a_flush(redis: &Redis, limiter: &Limiter) {
    let is_marked = async || {
        let _ = limiter.check("somebody else").await;
        redis.run::<i64>(&["EXISTS", "tsw:mark"]).await == 1
    };
    eventually("the loss is noticed", is_marked).await;
    // The reply to this check comes behind the one that tells of the loss.
    let _ = limiter.check("somebody else").await;
    sleep(Duration::from_millis(200)).await;
}

/// Returns a limiter for keys that nothing else uses.
fn probe(store: &RedisStore) -> Limiter {
    limiter(Policy::new("probe").quota(Quota::per_hour(1)), store)
}

/// A process behind a network of its own, that may be cut.
struct Far {
    proxy: Proxy,
    store: RedisStore,
}

/// Starts a server, a process behind a network of its own, and a limiter there.
async fn far(policy: Policy) -> (Redis, Far, Limiter) {
    let redis = Redis::start().await;
    let far = Far::from(&redis).await;
    let limiter = limiter(policy, &far.store);
    (redis, far, limiter)
}

/// Starts a server, and a limiter on it.
async fn near(limit: u32) -> (Redis, Limiter) {
    let redis = Redis::start().await;
    let limiter = limiter(user(limit), &store(redis.url()).await);
    (redis, limiter)
}

impl Far {
    async fn from(redis: &Redis) -> Self {
        let proxy = Proxy::to(redis.port()).await;
        let store = store(proxy.url()).await;
        Self { proxy, store }
    }

    fn limiter(&self, policy: Policy) -> Limiter {
        limiter(policy, &self.store)
    }

    /// Cuts the network, and waits until this process decides on its own.
    async fn cut(&self) {
        self.proxy.set(Fault::Cut);
        until_decided_by(DecidedBy::LocalLog, &probe(&self.store)).await;
    }

    /// Mends the network, and waits until Redis decides again about keys that were not used.
    async fn mend(&self) {
        self.proxy.set(Fault::None);
        until_redis_decides(&probe(&self.store)).await;
    }
}
