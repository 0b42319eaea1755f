//! The library's stores on the servers of a test, tests that hold on every store, and stores that answer as a
//! test wants.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tower_sliding_window::store::{
    Check, LogId, LogOutcome, Outcome, QuotaState, Store, StoreFuture,
};
use tower_sliding_window::{
    Explanation, MemoryStore, RedisServers, RedisStore, RedisStoreBuilder, StoreError,
};

use crate::warnings::Warnings;
use crate::{Cluster, MASTER, Redis, Sentinels};

impl Redis {
    pub async fn store(&self) -> RedisStore {
        patient().connect(self.url()).await.unwrap()
    }

    pub async fn store_without_deny_cache(&self) -> RedisStore {
        patient().deny_cache(false).connect(self.url()).await.unwrap()
    }
}

impl Cluster {
    pub fn servers(&self) -> RedisServers {
        RedisServers::cluster(self.urls()).unwrap()
    }
}

impl Sentinels {
    pub fn servers(&self) -> RedisServers {
        RedisServers::sentinel(self.urls(), MASTER).unwrap()
    }
}

/// Connects a store that waits for replies as long as a busy machine may need.
pub async fn patient_store<T>(servers: T) -> RedisStore
where
    T: TryInto<RedisServers>,
    StoreError: From<T::Error>,
{
    patient().connect(servers).await.unwrap()
}

/// Begins a store that waits for replies as long as a busy machine may need.
pub fn patient() -> RedisStoreBuilder {
    RedisStore::builder().response_timeout(Duration::from_secs(10))
}

/// Makes tests of functions that take a store: in process under paused time, on Redis, and on Redis
/// behind the deny cache. Those after `without_deny_cache:` say nothing about the cache, and wait for long.
#[macro_export]
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        $crate::on_every_store!($($name),*; without_deny_cache:);
    };
    (without_deny_cache: $($uncached:ident),* $(,)?) => {
        $crate::on_every_store!(; without_deny_cache: $($uncached),*);
    };
    ($($name:ident),*; without_deny_cache: $($uncached:ident),* $(,)?) => {
        mod in_process {
            $crate::on_every_store!(@in_process $($name)* $($uncached)*);
        }
        mod on_redis {
            $crate::on_every_store!(@on_redis store_without_deny_cache, $($name)* $($uncached)*);
        }
        mod with_deny_cache {
            $crate::on_every_store!(@on_redis store, $($name)*);
        }
    };
    (@in_process $($name:ident)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $name() {
            super::$name(tower_sliding_window::MemoryStore::new()).await;
        })*
    };
    (@on_redis $store:ident, $($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            let redis = $crate::Redis::start().await;
            let store = redis.$store().await;
            $crate::without_a_failure(super::$name(store)).await;
        })*
    };
}

/// Runs a test on Redis, in which Redis fails no check: the failure policy would decide in its place, and warn of it.
pub async fn without_a_failure(test: impl Future<Output = ()>) {
    let warnings = Warnings::listen();
    test.await;
    let mut warnings = warnings.lines();
    warnings.retain(|line| !line.contains("no such request ever passes"));
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// Returns the outcome of one log and one quota, without a free place, that an admission waits for so long for.
pub fn outcome(wait: Duration) -> Outcome {
    let state = QuotaState::new(0, wait, wait);
    Outcome::new(wait.is_zero(), [LogOutcome::new([state])])
}

/// A memory store that counts the checks. It may hold their replies back, be some way off, and delay settlements.
#[derive(Clone, Default)]
pub struct Delayed {
    pub store: MemoryStore,
    pub checks: Arc<AtomicUsize>,
    /// Holds back the replies to checks.
    pub hold: Option<Arc<Notify>>,
    /// How long a check and its reply are under way, each.
    pub way: Option<Duration>,
    /// How long the next settlements are under way.
    pub settlements: Arc<Mutex<VecDeque<Duration>>>,
}

impl Delayed {
    pub fn checks(&self) -> usize {
        self.checks.load(Ordering::Relaxed)
    }

    fn ask(
        &self,
        check: &Check,
        ask: fn(&MemoryStore, &Check) -> StoreFuture<Outcome>,
        hold: Option<Arc<Notify>>,
    ) -> StoreFuture<Outcome> {
        let (store, way, check) = (self.store.clone(), self.way, check.clone());
        let travel = async move || {
            if let Some(way) = way {
                sleep(way).await;
            }
        };
        StoreFuture::later(async move {
            travel().await;
            let outcome = ask(&store, &check).await;
            if let Some(hold) = hold {
                hold.notified().await;
            }
            travel().await;
            outcome
        })
    }
}

impl Store for Delayed {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.ask(check, MemoryStore::admit, self.hold.clone())
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.ask(check, MemoryStore::peek, None)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        self.store.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let Some(delay) = self.settlements.lock().unwrap().pop_front() else {
            return self.store.settle(check, cost);
        };
        let (store, check) = (self.store.clone(), check.clone());
        StoreFuture::later(async move {
            sleep(delay).await;
            store.settle(&check, cost).await
        })
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        self.store.reset(log)
    }
}

/// Answers each check by a function, and keeps nothing.
#[derive(Clone)]
pub struct StubStore<A>(pub A);

impl<A> Store for StubStore<A>
where
    A: Fn(&Check) -> StoreFuture<Outcome> + Send + Sync + 'static,
{
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        (self.0)(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        (self.0)(check)
    }

    fn explain(&self, _: &Check) -> StoreFuture<Explanation> {
        StoreFuture::ready(Err(StoreError::Unsupported { what: "explanations" }))
    }

    fn settle(&self, _: &Check, _: u32) -> StoreFuture<bool> {
        StoreFuture::ready(Ok(true))
    }

    fn reset(&self, _: &LogId) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}
