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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fastrand::Rng;
use test_support::load::{LIMIT, Load, Responses, USERS, WINDOW, user_policy};
use test_support::proxy::{Fault, Proxy};
use test_support::recorder::RecordedMetrics;
use test_support::requests::*;
use test_support::warnings::Warnings;
use test_support::*;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_test::{assert_pending, task};
use tower::{Layer, service_fn};
use tower_sliding_window::store::{Check, LogId, Outcome, QuotaState, Store};
use tower_sliding_window::*;
use uuid::Uuid;

/// The log of [`user`] and the key `alice`.
const LOG: &str = "tsw:{=alice}:user:1h";
const HOUR: Duration = Duration::from_secs(3_600);
const REDIS: DecidedBy = DecidedBy::Store;
/// The logs of this process decide.
const HERE: DecidedBy = DecidedBy::LocalLog;

fn user(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_hour(limit))
}

/// A policy whose denials bring bans, such as `3/10m:1h`.
fn strict(policy: Policy, penalty: &str) -> PolicyHandle {
    policy.penalty(penalty.parse().unwrap()).into()
}

fn limiter(policy: impl Into<PolicyHandle>, store: &(impl Store + Clone)) -> Limiter {
    Limiter::new(policy, store.clone())
}

/// Without the deny cache: a denial that is remembered for a second would hide what Redis says.
fn uncached() -> RedisStoreBuilder {
    RedisStore::builder().deny_cache(false)
}

async fn store<T>(servers: T) -> RedisStore
where
    T: TryInto<RedisServers>,
    StoreError: From<T::Error>,
{
    uncached().connect(servers).await.unwrap()
}

async fn decided_by(limiter: &Limiter, key: &str) -> DecidedBy {
    limiter.check(key).await.unwrap().decided_by()
}

/// Whether a request is admitted, and what has decided that.
fn verdict(decision: &Decision) -> (bool, DecidedBy) {
    (decision.is_admitted(), decision.decided_by())
}

async fn banned_for(limiter: &Limiter, key: &str) -> Option<Duration> {
    limiter.check(key).await.unwrap().usage().banned_for()
}

async fn left(limiter: &Limiter, key: &str) -> u32 {
    limiter.peek(key).await.unwrap().remaining()
}

/// Checks new keys until Redis decides about them, or until the process does.
async fn until_decided_by(by: DecidedBy, limiter: &Limiter) {
    eventually(&format!("decided by {by:?}"), async || {
        let key = Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == by)
    })
    .await;
}

async fn until_redis_decides(limiter: &Limiter) {
    until_decided_by(REDIS, limiter).await;
}

/// Checks a key until Redis decides about it.
async fn until_redis_decides_about(key: &str, limiter: &Limiter) {
    eventually("Redis decides", async || decided_by(limiter, key).await == REDIS).await;
}

/// Checks another key for so long. Meanwhile the process looks once a second whether Redis still has its data.
async fn check_another(limiter: &Limiter, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        let _ = limiter.check("somebody else").await;
        sleep(Duration::from_millis(20)).await;
    }
}

/// Checks another key for as long as a process needs to notice that Redis has lost its data.
async fn notice_a_loss(limiter: &Limiter) {
    check_another(limiter, Duration::from_millis(2_500)).await;
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

/// Begins a check of alice, and waits until her log has so many entries. The reply is read when the caller goes on.
async fn unread_check(
    redis: &Redis,
    limiter: &Limiter,
    entries: usize,
) -> task::Spawn<impl Future<Output = Result<Decision, StoreError>>> {
    let mut check = task::spawn(limiter.check("alice"));
    assert_pending!(check.poll());
    redis.has_entries(LOG, entries).await;
    check
}

/// A process behind a network of its own, that may be cut.
struct Far {
    proxy: Proxy,
    store: RedisStore,
}

/// Starts a server, a process behind a network of its own, and a limiter there.
async fn far(policy: impl Into<PolicyHandle>) -> (Redis, Far, Limiter) {
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
        Self::with(uncached(), redis).await
    }

    async fn with(builder: RedisStoreBuilder, redis: &Redis) -> Self {
        let proxy = Proxy::to(redis.port()).await;
        let store = builder.connect(proxy.url()).await.unwrap();
        Self { proxy, store }
    }

    /// Cuts the network, and waits until this process decides on its own.
    async fn cut(&self) {
        self.proxy.set(Fault::Cut);
        until_decided_by(HERE, &probe(&self.store)).await;
    }

    /// Mends the network, and waits until Redis decides again about keys that were not used.
    async fn mend(&self) {
        self.proxy.set(Fault::None);
        until_redis_decides(&probe(&self.store)).await;
    }
}

/// Returns a limiter for keys that nothing else uses.
fn probe(store: &RedisStore) -> Limiter {
    limiter(Policy::new("probe").quota(Quota::per_hour(1)), store)
}
