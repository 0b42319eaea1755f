//! What the monitor decides, in process under paused time, and what its scripts decide on a Redis whose
//! clock the test moves.

mod mutes;
mod rules;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::ConnectionManager;
use test_support::Redis;
use tower_sliding_window::RedisStore;

use crate::{Message, Mute, MuteEvent, Rule, SpeechMonitor};

const MICROSECOND: Duration = Duration::from_micros(1);
/// Where the clock of Redis starts: as many digits as real timestamps have.
const START_US: u64 = 1_790_000_000_000_000;

/// Makes two tests of each function, in process under paused time and on Redis.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::Chat::in_process()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Chat::on_redis().await).await;
            })*
        }
    };
}
use on_both;

/// A Redis whose scripts for messages go by the clock of the test.
struct Clocked {
    _server: Redis,
    connection: ConnectionManager,
    store: RedisStore,
}

/// A monitor under test, and the events that its hook got.
struct Chat {
    redis: Option<Clocked>,
    monitor: SpeechMonitor,
    events: Arc<Mutex<Vec<MuteEvent>>>,
    at: Duration,
}

impl Chat {
    fn in_process() -> Self {
        let monitor = SpeechMonitor::in_process([]);
        Self { redis: None, monitor, events: Arc::default(), at: Duration::ZERO }
    }

    async fn on_redis() -> Self {
        let server = Redis::start().await;
        let (connection, store) = (server.connection().await, server.store().await);
        let mut chat = Self::in_process();
        chat.redis = Some(Clocked { _server: server, connection, store });
        chat.use_rules([]);
        chat.at_exactly(Duration::ZERO).await;
        chat
    }

    /// A monitor with other rules. In process it has other senders too.
    fn use_rules(&mut self, rules: impl IntoIterator<Item = Rule>) {
        let events = self.events.clone();
        let monitor = match &self.redis {
            None => SpeechMonitor::in_process(rules),
            Some(redis) => {
                let clocked = |text: &str| {
                    let clocked = text.replace("call('TIME')", "call('HMGET', 'clock', 's', 'us')");
                    assert_ne!(clocked, text);
                    clocked
                };
                SpeechMonitor::with_scripts(rules, &redis.store, clocked)
            }
        };
        self.monitor = monitor.on_mute(move |event| events.lock().unwrap().push(event.clone()));
    }

    fn with_rules(mut self, texts: &[&str]) -> Self {
        self.use_rules(rules(texts));
        self
    }

    /// Moves the clock to `seconds` after the start.
    async fn at(&mut self, seconds: f64) -> &mut Self {
        self.at_exactly(Duration::from_secs_f64(seconds)).await
    }

    async fn at_exactly(&mut self, at: Duration) -> &mut Self {
        if let Some(redis) = &mut self.redis {
            let now_us = START_US + u64::try_from(at.as_micros()).unwrap();
            let (s, us) = (now_us / 1_000_000, now_us % 1_000_000);
            let mut set = redis::cmd("HSET");
            let set = set.arg(("clock", "s", s, "us", us));
            set.exec_async(&mut redis.connection).await.unwrap();
        } else {
            tokio::time::advance(at - self.at).await;
        }
        self.at = at;
        self
    }

    /// Sends a message, and returns the sender's mute if it is not delivered.
    async fn send(&self, message: Message) -> Option<Mute> {
        let is_delivered = self.monitor.check(&message).await.unwrap().is_delivered();
        let mute = self.monitor.mute_of(message.sender.clone()).await.unwrap();
        assert_eq!(mute.is_none(), is_delivered);
        mute
    }

    /// Sends a text from Alice, and returns her mute.
    async fn says(&self, text: &str) -> Option<Mute> {
        self.send(Message::from("alice").text(text)).await
    }

    /// Sends a picture from Alice to a peer.
    async fn writes_to(&self, peer: &str) -> Option<Mute> {
        self.send(Message::from("alice").to(peer)).await
    }

    async fn mute(&self) -> Option<Mute> {
        self.monitor.mute_of("alice").await.unwrap()
    }

    /// Returns each event's hours that are left, and whether the mute was lengthened.
    fn audit(&self) -> Vec<(u64, bool)> {
        let events = self.events.lock().unwrap();
        events.iter().map(|it| (hours_left(&it.mute), it.lengthened)).collect()
    }
}

/// Returns how many hours of a mute are left, rounded.
fn hours_left(mute: &Mute) -> u64 {
    (mute.remaining().as_secs_f64() / 3600.0).round() as u64
}

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// Returns a text that is not similar to those of other numbers.
fn noise(number: usize) -> String {
    (0..12).map(|at| char::from_u32((0x4e00 + number * 12 + at) as u32).unwrap()).collect()
}
