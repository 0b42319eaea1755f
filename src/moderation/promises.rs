//! What the monitor promises, on both stores under a clock that stands still unless it is told.

mod mutes;
mod rules;
mod similar;
mod stores;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::ConnectionManager;
use test_support::Redis;

use super::redis::Scripts;
use super::store::SpeechStore;
use super::{Message, Mute, MuteEvent, Rule, SpeechMonitor};
use crate::promises::promises;
use crate::store::{MemoryStore, RedisStore};

/// Where the stamps in Redis begin: as many digits as real ones.
const ORIGIN_US: u64 = 1_790_000_000_000_000;
const MICROSECOND: Duration = Duration::from_micros(1);

/// A store and its clock.
struct World {
    store: Arc<dyn SpeechStore>,
    /// That of Redis; in process it is the paused one of tokio.
    clock: Option<RedisClock>,
}

struct RedisClock {
    now_us: u64,
    connection: ConnectionManager,
    _server: Redis,
}

impl World {
    fn in_process() -> Self {
        Self { store: Arc::new(MemoryStore::new()), clock: None }
    }

    async fn on_redis() -> Self {
        let server = Redis::start().await;
        let connection = server.connection().await;
        let store = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let store = Scripts::with_clock(&store.connection(connection.clone()), "clock");
        let clock = RedisClock { now_us: ORIGIN_US, connection, _server: server };
        let mut world = Self { store: Arc::new(store), clock: Some(clock) };
        world.advance(Duration::ZERO).await;
        world
    }

    async fn advance(&mut self, time: Duration) {
        let Some(RedisClock { now_us, connection, .. }) = &mut self.clock else {
            return tokio::time::advance(time).await;
        };
        *now_us += u64::try_from(time.as_micros()).unwrap();
        let (s, us) = (*now_us / 1_000_000, *now_us % 1_000_000);
        let mut set = redis::cmd("HSET");
        set.arg(("clock", "s", s, "us", us)).exec_async(connection).await.unwrap();
    }

    fn chat(self, rules: impl IntoIterator<Item = Rule>) -> Chat {
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = events.clone();
        let monitor = SpeechMonitor::new(rules, self.store.clone())
            .on_mute(move |event| heard.lock().unwrap().push(event.clone()));
        Chat { world: self, monitor, events, at: Duration::ZERO }
    }
}

/// A monitor under test, and what its audit heard.
struct Chat {
    world: World,
    monitor: SpeechMonitor,
    events: Arc<Mutex<Vec<MuteEvent>>>,
    at: Duration,
}

impl Chat {
    /// Moves the clock to so many seconds after the start.
    async fn at(&mut self, seconds: f64) -> &mut Self {
        self.at_exactly(Duration::from_secs_f64(seconds)).await
    }

    async fn at_exactly(&mut self, at: Duration) -> &mut Self {
        self.world.advance(at - self.at).await;
        self.at = at;
        self
    }

    async fn send(&self, message: Message) -> Option<Mute> {
        self.monitor.check(&message).await.unwrap().mute().cloned()
    }

    /// Sends a text of Alice's; returns her mute.
    async fn says(&self, text: &str) -> Option<Mute> {
        self.send(Message::from("alice").text(text)).await
    }

    /// Sends a picture of Alice's to somebody.
    async fn writes_to(&self, peer: &str) -> Option<Mute> {
        self.send(Message::from("alice").to(peer)).await
    }

    async fn mute(&self) -> Option<Mute> {
        self.monitor.mute_of("alice").await.unwrap()
    }

    /// Returns the length of each mute that the audit heard of, in hours, and whether it replaced
    /// another.
    fn audit(&self) -> Vec<(u64, bool)> {
        let events = self.events.lock().unwrap();
        events.iter().map(|it| (it.mute.rule().mute().as_secs() / 3600, it.lengthened)).collect()
    }
}

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// A text that is like no other of another number.
fn noise(number: usize) -> String {
    (0..12).map(|at| char::from_u32((0x4e00 + number * 12 + at) as u32).unwrap()).collect()
}
