//! A clock that the test moves, in process and for the scripts of a crate on Redis.

use std::time::Duration;

use tower_sliding_window::RedisStore;

use crate::Redis;

/// The time of tokio, which must be paused, or what scripts read on a server.
pub struct Clock {
    redis: Option<(Redis, RedisStore)>,
    now: Duration,
}

/// Holds a promise in process, under paused time, and on Redis.
pub async fn on_both(promise: impl AsyncFn(Clock)) {
    tokio::time::pause();
    promise(Clock::in_process()).await;
    tokio::time::resume();
    promise(Clock::on_redis().await).await;
}

impl Clock {
    /// The clock of this process. It never steps back.
    pub fn in_process() -> Self {
        // As many digits as real timestamps have.
        Self { redis: None, now: Duration::from_secs(1_790_000_000) }
    }

    /// Starts a server. The scripts of [`Clock::edited`] read their time there.
    pub async fn on_redis() -> Self {
        let redis = Redis::start().await;
        let store = redis.store().await;
        let mut clock = Self { redis: Some((redis, store)), ..Self::in_process() };
        clock.set(clock.now).await;
        clock
    }

    /// Returns the text of a script that goes by this clock.
    pub fn edited(script: &str) -> String {
        assert_eq!(script.matches("call('TIME')").count(), 1, "TIME is called once");
        script.replace("call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')")
    }

    pub fn redis(&self) -> Option<&Redis> {
        self.redis.as_ref().map(|(redis, _)| redis)
    }

    pub fn store(&self) -> Option<&RedisStore> {
        self.redis.as_ref().map(|(_, store)| store)
    }

    /// Returns the time since the Unix epoch.
    pub fn now(&self) -> Duration {
        self.now
    }

    pub async fn advance(&mut self, by: Duration) {
        if self.redis.is_none() {
            tokio::time::advance(by).await;
        }
        self.set(self.now + by).await;
    }

    /// Sets the clock back, which must be that of Redis.
    pub async fn step_back(&mut self, by: Duration) {
        assert!(self.redis.is_some(), "a clock of Redis");
        self.set(self.now - by).await;
    }

    async fn set(&mut self, now: Duration) {
        self.now = now;
        if let Some((_, store)) = &self.redis {
            let mut set = redis::cmd("HSET");
            set.arg(("clock", "s", now.as_secs(), "us", now.subsec_micros()));
            store.commands().query::<()>(&set).await.unwrap();
        }
    }
}
