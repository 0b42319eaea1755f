//! Contract tests of the speech monitor, on both stores, with a clock that the test moves.

mod manual;
mod mutes;
mod rules;
mod stores;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::store::SpeechStore;
use super::{Message, Mute, MuteEvent, Rule, SpeechMonitor};
use crate::contract_tests::{Clock, contract_tests};

const MICROSECOND: Duration = Duration::from_micros(1);

/// A store and its clock.
struct World {
    store: Arc<dyn SpeechStore>,
    clock: Clock,
}

impl World {
    fn new(store: impl SpeechStore, clock: Clock) -> Self {
        Self { store: Arc::new(store), clock }
    }

    fn chat(self, rules: impl IntoIterator<Item = Rule>) -> Chat {
        let monitor = SpeechMonitor::new([], self.store.clone());
        let mut chat = Chat { world: self, monitor, events: Arc::default(), at: Duration::ZERO };
        chat.use_rules(rules);
        chat
    }
}

/// A monitor under test, and the events that its hook got.
struct Chat {
    world: World,
    monitor: SpeechMonitor,
    events: Arc<Mutex<Vec<MuteEvent>>>,
    at: Duration,
}

impl Chat {
    fn use_rules(&mut self, rules: impl IntoIterator<Item = Rule>) {
        let events = self.events.clone();
        self.monitor = SpeechMonitor::new(rules, self.world.store.clone())
            .on_mute(move |event| events.lock().unwrap().push(event.clone()));
    }

    /// Moves the clock to `seconds` after the start.
    async fn at(&mut self, seconds: f64) -> &mut Self {
        self.at_exactly(Duration::from_secs_f64(seconds)).await
    }

    async fn at_exactly(&mut self, at: Duration) -> &mut Self {
        self.world.clock.advance(at - self.at).await;
        self.at = at;
        self
    }

    async fn send(&self, message: Message) -> Option<Mute> {
        self.monitor.check(&message).await.unwrap().mute().cloned()
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

    /// Returns each event's length of the mute in hours, and whether the mute was lengthened.
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

/// Returns a text that is not similar to those of other numbers.
fn noise(number: usize) -> String {
    (0..12).map(|at| char::from_u32((0x4e00 + number * 12 + at) as u32).unwrap()).collect()
}
