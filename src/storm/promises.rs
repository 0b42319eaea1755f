//! What a store promises of storms, on both stores under a clock that stands still unless it is told.

mod agreement;
mod clock;
mod counts;
mod events;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;
use test_support::Redis;

use super::StormRule;
use super::redis::Scripts;
use super::store::{Ended, Sighted, Sighting, Started, StormStore};
use crate::key::Key;
use crate::promises::promises;
use crate::store::{MemoryStore, RedisStore};

/// Where the stamps in Redis begin: as many digits as real ones.
const ORIGIN_US: u64 = 1_790_000_000_000_000;
const SECOND: u64 = 1_000_000;

/// A store and its clock.
struct World {
    store: Arc<dyn StormStore>,
    /// That of Redis; in process it is the paused one of tokio.
    clock: Option<RedisClock>,
    rule: Arc<StormRule>,
    sent: u32,
}

struct RedisClock {
    now_us: u64,
    connection: ConnectionManager,
    _server: Redis,
}

impl World {
    fn in_process() -> Self {
        Self::new(Arc::new(MemoryStore::new()), None)
    }

    async fn on_redis() -> Self {
        let server = Redis::start().await;
        let connection = server.connection().await;
        let store = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let store = Scripts::with_clock(&store.connection(connection.clone()), "clock");
        let clock = RedisClock { now_us: ORIGIN_US, connection, _server: server };
        let mut world = Self::new(Arc::new(store), Some(clock));
        world.advance(0).await;
        world
    }

    fn new(store: Arc<dyn StormStore>, clock: Option<RedisClock>) -> Self {
        // More than five in ten seconds; over with fewer than three.
        let rule = StormRule::new("5/10s".parse().unwrap());
        Self { store, clock, rule: Arc::new(rule), sent: 0 }
    }

    fn ruled(mut self, change: impl FnOnce(StormRule) -> StormRule) -> Self {
        self.rule = Arc::new(change((*self.rule).clone()));
        assert_eq!(self.rule.validate(), Ok(()));
        self
    }

    async fn advance(&mut self, us: u64) {
        let Some(clock) = &mut self.clock else {
            return tokio::time::advance(Duration::from_micros(us)).await;
        };
        clock.now_us += us;
        clock.set().await;
    }

    async fn step_back(&mut self, us: u64) {
        let clock = self.clock.as_mut().expect("a clock in process does not");
        clock.now_us -= us;
        clock.set().await;
    }

    async fn sight(&self, sighting: &Sighting) -> Sighted {
        self.store.sight(sighting).await.unwrap()
    }

    fn message(&self, group: &str, id: &str) -> Sighting {
        Sighting::new(self.rule.clone(), group.into(), Some(id.into()))
    }

    /// Records a new message of the group.
    async fn record(&mut self) -> Sighted {
        self.sent += 1;
        self.sight(&self.message("lobby", &format!("message-{}", self.sent))).await
    }

    /// Records so many messages at once; returns what the last one was answered.
    async fn record_all(&mut self, count: usize) -> Sighted {
        let mut last = None;
        for _ in 0..count {
            last = Some(self.record().await);
        }
        last.unwrap()
    }

    async fn look(&self) -> Sighted {
        self.sight(&Sighting::new(self.rule.clone(), "lobby".into(), None)).await
    }

    async fn profile(&self, step_us: u64) -> Vec<u32> {
        let step = Duration::from_micros(step_us);
        self.store.profile(&self.rule, &Key::from("lobby"), step).await.unwrap()
    }
}

impl RedisClock {
    async fn set(&mut self) {
        let (s, us) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
        let mut set = redis::cmd("HSET");
        set.arg(("clock", "s", s, "us", us)).exec_async(&mut self.connection).await.unwrap();
    }
}
