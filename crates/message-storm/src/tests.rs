//! What a check decides, in process and on Redis, with a clock that the test moves.

mod clock;
mod counts;
mod events;
mod histories;
mod reminders;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::Key;
use tower_sliding_window::store::RedisCommands;
use uuid::Uuid;

use crate::StormRule;
use crate::detector::{Check, Store};
use crate::event::Outcome;
use crate::in_process::InProcess;
use crate::on_redis::OnRedis;

const SECOND: u64 = 1_000_000;

/// Makes two tests of each function: in process under paused time, and on Redis.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::World::in_process()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::World::on_redis().await).await;
            })*
        }
    };
}
use on_both;

/// A store and its clock.
struct World {
    store: Store,
    redis: Option<(Redis, RedisCommands)>,
    now_us: u64,
    rule: Arc<StormRule>,
    remind_us: u64,
    sent: u32,
}

impl World {
    fn in_process() -> Self {
        Self::new(Store::InProcess(InProcess::new(100, 1_000)), None)
    }

    /// Starts a server. The scripts read its clock from a hash.
    async fn on_redis() -> Self {
        let redis = Redis::start().await;
        let commands = redis.store().await.commands();
        let edited = |text: &str| {
            assert_eq!(text.matches("call('TIME')").count(), 1, "TIME is called once");
            text.replace("call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')")
        };
        let store = Store::OnRedis(OnRedis::new(commands.clone(), edited));
        let mut world = Self::new(store, Some((redis, commands)));
        world.advance(0).await;
        world
    }

    fn new(store: Store, redis: Option<(Redis, RedisCommands)>) -> Self {
        // A storm starts with more than five messages in ten seconds and ends with fewer than three.
        let rule = Arc::new(StormRule::new("5/10s".parse().unwrap()));
        // As many digits as real timestamps have.
        Self { store, redis, now_us: 1_790_000_000_000_000, rule, remind_us: 0, sent: 0 }
    }

    fn with_rule(mut self, change: impl FnOnce(StormRule) -> StormRule) -> Self {
        self.rule = Arc::new(change((*self.rule).clone()));
        assert_eq!(self.rule.validate(), Ok(()));
        self
    }

    fn server(&self) -> Option<&Redis> {
        self.redis.as_ref().map(|(server, _)| server)
    }

    async fn advance(&mut self, us: u64) {
        self.now_us += us;
        match &self.redis {
            None => tokio::time::advance(Duration::from_micros(us)).await,
            Some(_) => self.set_clock().await,
        }
    }

    /// Sets the clock of Redis back. The one in process never steps back.
    async fn step_back(&mut self, us: u64) {
        self.now_us -= us;
        self.set_clock().await;
    }

    async fn set_clock(&self) {
        let (_, commands) = self.redis.as_ref().expect("a clock of Redis");
        let mut set = redis::cmd("HSET");
        set.arg(("clock", "s", self.now_us / SECOND, "us", self.now_us % SECOND));
        commands.query::<u32>(&set).await.unwrap();
    }

    async fn check(&self, check: &Check) -> Outcome {
        self.store.check(check).await.unwrap()
    }

    /// Makes a check with a new call id.
    fn check_of(&self, group: impl Into<Key>, message: Option<Key>) -> Check {
        let (call, rule, group) = (Uuid::new_v4(), self.rule.clone(), group.into());
        Check { call, number: 0, rule, group, message, remind_us: self.remind_us }
    }

    fn message(&self, id: &str) -> Check {
        self.check_of("lobby", Some(id.into()))
    }

    /// Records a new message of the group.
    async fn record(&mut self) -> Outcome {
        self.sent += 1;
        self.check(&self.message(&format!("message-{}", self.sent))).await
    }

    /// Records `count` messages at the same instant, and returns the last outcome.
    async fn record_all(&mut self, count: usize) -> Outcome {
        let mut last = None;
        for _ in 0..count {
            last = Some(self.record().await);
        }
        last.unwrap()
    }

    async fn peek(&self) -> Outcome {
        self.check(&self.check_of("lobby", None)).await
    }

    async fn profile(&self, step_us: u64) -> Vec<u32> {
        self.profile_of(&Key::from("lobby"), step_us).await
    }

    async fn profile_of(&self, group: &Key, step_us: u64) -> Vec<u32> {
        match &self.store {
            Store::InProcess(store) => store.profile(&self.rule, group, step_us),
            Store::OnRedis(store) => store.profile(&self.rule, group, step_us).await.unwrap(),
        }
    }
}
