//! [`contract_tests`]: runs tests on both stores, each with a [`Clock`] that the test moves.

use std::time::Duration;

use redis::aio::ConnectionManager;
use test_support::Redis;

/// Makes two tests of each function, in process under paused time and on Redis.
///
/// The function takes a `World`, which the calling module creates from a store and its [`Clock`].
macro_rules! contract_tests {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                let clock = crate::contract_tests::Clock::in_process();
                super::$name(super::World::new(crate::MemoryStore::new(), clock)).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let (clock, store) = crate::contract_tests::Clock::on_redis().await;
                super::$name(super::World::new(store, clock)).await;
            })*
        }
    };
}
pub(crate) use contract_tests;

/// The clock of a store: in process the paused clock of tokio, on Redis the clock of the test.
pub(crate) struct Clock {
    pub(crate) now_us: u64,
    redis: Option<(ConnectionManager, Redis)>,
}

impl Clock {
    pub(crate) fn in_process() -> Self {
        Self { now_us: 0, redis: None }
    }

    /// Starts Redis with a test clock, and returns a store on it too.
    pub(crate) async fn on_redis() -> (Self, crate::RedisStore) {
        let server = Redis::start().await;
        let connection = server.connection().await;
        let store = crate::RedisStore::builder().response_timeout(Duration::from_secs(10));
        let store = store.connect_with_clock(&server.url(), "clock").await;
        // As many digits as real timestamps have.
        let mut clock = Self { now_us: 1_790_000_000_000_000, redis: Some((connection, server)) };
        clock.advance(Duration::ZERO).await;
        (clock, store)
    }

    pub(crate) async fn advance(&mut self, time: Duration) {
        self.now_us += crate::time::micros(time);
        if self.redis.is_none() {
            return tokio::time::advance(time).await;
        }
        self.set().await;
    }

    async fn set(&mut self) {
        let (connection, _) = self.redis.as_mut().expect("a clock of Redis");
        let (s, us) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
        let mut set = redis::cmd("HSET");
        set.arg(("clock", "s", s, "us", us)).exec_async(connection).await.unwrap();
    }
}
