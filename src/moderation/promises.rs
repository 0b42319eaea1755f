//! What the monitor promises, on both stores under a clock that stands still unless it is told.

mod stores;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis_test::server::RedisServer;

use super::redis::Senders;
use super::store::SpeechStore;
use super::{Message, Mute, MuteEvent, Rule, SpeechMonitor};
use crate::store::redis::tests::connect;
use crate::store::{MemoryStore, RedisStore};

/// Where the stamps in Redis begin: as many digits as real ones.
const ORIGIN_US: u64 = 1_790_000_000_000_000;
const MICROSECOND: Duration = Duration::from_micros(1);

/// A store and its clock.
struct World {
    store: Arc<dyn SpeechStore>,
    clock: Clock,
}

enum Clock {
    Paused,
    OnRedis { now_us: u64, connection: ConnectionManager, _server: RedisServer },
}

impl World {
    fn in_process() -> Self {
        Self { store: Arc::new(MemoryStore::new()), clock: Clock::Paused }
    }

    async fn on_redis() -> Self {
        let server = RedisServer::new();
        let connection = connect(&server).await;
        let store = RedisStore::builder().response_timeout(Duration::from_secs(10));
        let store = store.connection(connection.clone());
        let clock = Clock::OnRedis { now_us: ORIGIN_US, connection, _server: server };
        let mut world = Self { store: Arc::new(Senders::with_clock(&store, "clock")), clock };
        world.advance(Duration::ZERO).await;
        world
    }

    async fn advance(&mut self, time: Duration) {
        match &mut self.clock {
            Clock::Paused => tokio::time::advance(time).await,
            Clock::OnRedis { now_us, connection, .. } => {
                *now_us += u64::try_from(time.as_micros()).unwrap();
                let (s, us) = (*now_us / 1_000_000, *now_us % 1_000_000);
                let mut set = redis::cmd("HSET");
                set.arg(("clock", "s", s, "us", us)).exec_async(connection).await.unwrap();
            }
        }
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

/// Runs promises on both stores.
macro_rules! promises {
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
use promises;

promises!(
    five_similar_messages_in_five_minutes_mute_for_twelve_hours,
    three_similar_messages_in_a_minute_mute_for_six_hours,
    five_peers_in_three_minutes_mute_for_a_day,
    nine_peers_in_five_minutes_mute_for_two_days,
    a_peer_that_is_written_to_again_moves_and_does_not_count_twice,
    as_many_events_as_the_rule_says_mute,
    what_is_exactly_a_window_old_is_out,
    a_mute_ends_to_the_microsecond,
    the_longer_mute_stands_when_it_comes_later,
    the_longer_mute_stands_when_it_comes_first,
    the_longer_mute_stands_when_both_come_at_once,
    who_goes_on_under_a_mute_does_not_lengthen_it,
    who_goes_on_until_a_mute_ends_is_muted_again,
    noise_between_similar_messages_does_not_hide_them,
    messages_that_differ_mute_nobody,
    the_rate_is_that_of_the_newest_to_each_of_the_others,
    ninety_percent_is_enough_and_less_is_not,
    disguised_messages_are_similar,
    blank_messages_are_similar_and_those_without_a_text_are_not_compared,
    only_so_many_texts_are_remembered,
    senders_do_not_share_anything,
    whoever_is_unmuted_begins_anew,
    a_monitor_without_rules_heeds_the_mutes_of_others,
);

async fn five_similar_messages_in_five_minutes_mute_for_twelve_hours(world: World) {
    let mut chat = world.chat(rules(&["similar 5/5m 90% mute 12h"]));
    for at in 0..4 {
        chat.at(f64::from(at) * 70.0).await;
        assert_eq!(chat.says("Cheap gold at example.com").await, None);
    }
    let mute = chat.at(299.0).await.says("cheap gold at example.com!").await.unwrap();
    assert_eq!(mute.remaining(), hours(12));
    assert_eq!(mute.rule().to_string(), "similar 5/300s 90% mute 12h");
    assert_eq!(mute.reason().to_string(), "5 messages within 300s at 95% similarity");
    assert_eq!(chat.mute().await.unwrap().reason(), mute.reason());
    assert_eq!(chat.audit(), [(12, false)]);
    assert_eq!(chat.events.lock().unwrap()[0].sender.as_bytes(), b"alice");
}

async fn three_similar_messages_in_a_minute_mute_for_six_hours(world: World) {
    let mut chat = world.chat(Rule::recommended());
    assert_eq!(chat.says("加微信领红包").await, None);
    assert_eq!(chat.at(20.0).await.says("加微信领红包！").await, None);
    assert_eq!(chat.at(81.0).await.says("加 微信领红包").await, None, "two within any minute");
    assert_eq!(chat.at(141.0).await.says(&noise(0)).await, None);
    let mute = chat.at(142.0).await.says("加微信领红包").await;
    assert_eq!(mute, None, "the third is two minutes old");
    assert_eq!(chat.at(143.0).await.says(&noise(1)).await, None);
    assert_eq!(chat.at(440.0).await.says("加微信领红包").await, None);
    assert_eq!(chat.at(450.0).await.says("加微信领红包").await, None);
    let mute = chat.at(499.0).await.says("加微信领红包").await.unwrap();
    assert_eq!((mute.remaining(), mute.reason().count()), (hours(6), 3));
    assert_eq!(chat.audit(), [(6, false)]);
}

async fn five_peers_in_three_minutes_mute_for_a_day(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for (at, peer) in [(0.0, "a"), (45.0, "b"), (90.0, "c"), (135.0, "d"), (180.0, "e")] {
        assert_eq!(chat.at(at).await.writes_to(peer).await, None, "the fifth comes too late");
    }
    let mute = chat.at(200.0).await.writes_to("f").await.unwrap();
    assert_eq!(mute.reason().to_string(), "5 private-chat peers within 180s");
    assert_eq!(mute.remaining(), hours(24));
    assert_eq!(chat.audit(), [(24, false)]);
}

async fn nine_peers_in_five_minutes_mute_for_two_days(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for peer in 0..9_u32 {
        let mute = chat.at(f64::from(peer) * 37.0).await.writes_to(&peer.to_string()).await;
        let hours = mute.map(|mute| mute.rule().mute().as_secs() / 3600);
        assert_eq!(hours, [None, Some(24), Some(48)][(peer >= 4) as usize + (peer >= 8) as usize]);
    }
    let mute = chat.mute().await.unwrap();
    assert_eq!((mute.remaining(), mute.reason().count()), (hours(48), 9));
    assert_eq!(chat.audit(), [(24, false), (48, true)]);
}

async fn a_peer_that_is_written_to_again_moves_and_does_not_count_twice(world: World) {
    let mut chat = world.chat(rules(&["peers 3/1m mute 24h"]));
    for at in 0..20 {
        assert_eq!(chat.at(f64::from(at)).await.writes_to("a").await, None);
    }
    assert_eq!(chat.at(70.0).await.writes_to("b").await, None, "the first is out by now");
    assert_eq!(chat.at(75.0).await.writes_to("a").await, None, "it is back, and not twice");
    assert_eq!(chat.at(80.0).await.writes_to("b").await, None);
    assert!(chat.at(134.0).await.writes_to("c").await.is_some(), "both have moved");
}

async fn as_many_events_as_the_rule_says_mute(world: World) {
    let mut chat = world.chat(rules(&["events 4/10s mute 1h"]));
    chat.says("one").await;
    chat.writes_to("bob").await;
    assert_eq!(chat.at(5.0).await.says("two").await, None);
    assert_eq!(chat.at(10.0).await.says("three").await, None, "the first two are out");
    assert_eq!(chat.at(11.0).await.send(Message::from("alice").to("bob").text("4")).await, None);
    let mute = chat.at(14.0).await.writes_to("carol").await.unwrap();
    assert_eq!(mute.reason().to_string(), "4 messages within 10s");
    assert_eq!(mute.remaining(), hours(1));
}

async fn what_is_exactly_a_window_old_is_out(world: World) {
    let texts = ["similar 2/1m 90% mute 12h", "peers 2/1m mute 12h", "events 2/1m mute 12h"];
    let mut chat = world.chat([]);
    let minute = Duration::from_secs(60);
    for (index, text) in texts.iter().enumerate() {
        let store = chat.world.store.clone();
        chat.monitor = SpeechMonitor::new(rules(&[text]), store);
        let say = |to| Message::from(*text).to(to).text("buy");
        let start = Duration::from_secs(1000 * index as u64);
        assert_eq!(chat.at_exactly(start).await.send(say("a")).await, None);
        assert_eq!(chat.at_exactly(start + minute).await.send(say("b")).await, None, "{text}");
        let last = start + 2 * minute - MICROSECOND;
        assert!(chat.at_exactly(last).await.send(say("c")).await.is_some(), "{text}");
    }
}

async fn a_mute_ends_to_the_microsecond(world: World) {
    let mut chat = world.chat(rules(&["events 2/1s mute 10s"]));
    chat.says("a").await;
    assert!(chat.says("b").await.is_some());
    let last = Duration::from_secs(10) - MICROSECOND;
    let mute = chat.at_exactly(last).await.mute().await.unwrap();
    assert_eq!(mute.remaining(), MICROSECOND);
    assert!(chat.says("c").await.is_some(), "it is muted to the last");
    assert_eq!(chat.at(10.0).await.mute().await, None);
    let again = chat.at(11.0).await.says("d").await;
    assert_eq!(again, None, "what led to the mute is over, and so is the mute");
    assert_eq!(chat.audit().len(), 1);
}

const BOTH: [&str; 2] = ["similar 3/1m 90% mute 6h", "similar 5/5m 90% mute 12h"];

async fn the_longer_mute_stands_when_it_comes_later(world: World) {
    let mut chat = world.chat(rules(&BOTH));
    let mut remaining = Vec::new();
    for at in [0.0, 10.0, 20.0, 30.0, 40.0] {
        let mute = chat.at(at).await.says("buy gold").await;
        remaining.push(mute.map_or(Duration::ZERO, |mute| mute.remaining()));
    }
    let six_less_ten = hours(6) - Duration::from_secs(10);
    assert_eq!(remaining, [Duration::ZERO, Duration::ZERO, hours(6), six_less_ten, hours(12)]);
    assert_eq!(chat.audit(), [(6, false), (12, true)]);
}

async fn the_longer_mute_stands_when_it_comes_first(world: World) {
    let mut chat = world.chat(rules(&BOTH));
    for at in [0.0, 70.0, 140.0, 210.0] {
        assert_eq!(chat.at(at).await.says("buy gold").await, None);
    }
    assert_eq!(chat.at(280.0).await.says("buy gold").await.unwrap().remaining(), hours(12));
    for at in [281.0, 282.0, 283.0, 290.0] {
        let mute = chat.at(at).await.says("buy gold").await.unwrap();
        assert_eq!(mute.rule().mute(), hours(12), "the shorter one is complete, and does nothing");
        assert_eq!(mute.remaining(), hours(12) + Duration::from_secs(280) - chat.at);
    }
    assert_eq!(chat.audit(), [(12, false)]);
    // Late in the long mute the short one would end later: it does nothing all the same.
    for after in [0.0, 1.0, 2.0, 3.0] {
        chat.at(11.9 * 3600.0 + after).await.says("buy gold").await;
    }
    assert_eq!(
        chat.mute().await.unwrap().remaining(),
        hours(12) + Duration::from_secs(280) - chat.at
    );
    assert_eq!(chat.audit(), [(12, false)]);
}

async fn the_longer_mute_stands_when_both_come_at_once(world: World) {
    let mut chat = world.chat(rules(&BOTH));
    for at in [0.0, 100.0, 200.0, 250.0] {
        assert_eq!(chat.at(at).await.says("buy gold").await, None);
    }
    assert_eq!(chat.at(255.0).await.says("buy gold").await.unwrap().remaining(), hours(12));
    assert_eq!(chat.audit(), [(12, false)], "one mute, not a shorter one that is lengthened");
}

async fn who_goes_on_under_a_mute_does_not_lengthen_it(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for at in 0..500 {
        chat.at(f64::from(at)).await.says("buy gold").await;
    }
    // The fifth message came at second 4.
    let until = hours(12) + Duration::from_secs(4);
    assert_eq!(chat.mute().await.unwrap().remaining(), until - chat.at);
    assert_eq!(chat.audit(), [(6, false), (12, true)]);
}

async fn who_goes_on_until_a_mute_ends_is_muted_again(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    let mut delivered = Vec::new();
    for minute in 0..1200 {
        let at = f64::from(minute) * 20.0;
        if chat.at(at).await.says("buy gold").await.is_none() {
            delivered.push(at);
        }
    }
    assert_eq!(delivered, [0.0, 20.0], "nobody sees any of what follows");
    assert_eq!(chat.audit(), [(6, false), (6, false)]);
}

async fn noise_between_similar_messages_does_not_hide_them(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    for number in 0..2 {
        assert_eq!(chat.says("buy gold").await, None);
        for other in 0..20 {
            let mute = chat.says(&noise(number * 20 + other)).await;
            assert_eq!(mute, None);
        }
    }
    let mute = chat.at(30.0).await.says("buy gold").await.unwrap();
    assert_eq!((mute.reason().count(), mute.reason().percent()), (3, 100));
}

async fn messages_that_differ_mute_nobody(world: World) {
    let chat = world.chat(Rule::recommended());
    for number in 0..200 {
        assert_eq!(chat.says(&noise(number)).await, None);
    }
    assert_eq!(chat.audit(), []);
}

async fn the_rate_is_that_of_the_newest_to_each_of_the_others(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    // One and two differ in two of ten characters, and in one each from the third.
    let [one, two, third] = ["abcdefghiX", "Yabcdefghi", "abcdefghi"];
    chat.says(one).await;
    chat.says(two).await;
    let mute = chat.says(third).await.unwrap();
    assert_eq!((mute.reason().count(), mute.reason().percent()), (3, 90));
    // The other way round the newest is like one of the others only.
    chat.at(7.0 * 3600.0).await;
    chat.says(one).await;
    chat.says(third).await;
    assert_eq!(chat.says(two).await, None);
}

async fn ninety_percent_is_enough_and_less_is_not(world: World) {
    let chat = world.chat(rules(&["similar 2/1m 90% mute 6h"]));
    let send = async |sender: &str, text| {
        chat.send(Message::from(sender).text(text)).await.map(|mute| mute.reason().percent())
    };
    assert_eq!(send("alice", "0123456789").await, None);
    assert_eq!(send("alice", "012345678x").await, Some(90));
    assert_eq!(send("bob", "012345678").await, None);
    assert_eq!(send("bob", "01234567x").await, None, "8 of 9 is less");
    let fifty = "一二三四五六七八九十".repeat(5);
    let five_more = format!("{fifty}12345");
    assert_eq!(send("carol", &fifty).await, None);
    assert_eq!(send("carol", &five_more).await, Some(90), "50 of 55, rounded down");
}

async fn disguised_messages_are_similar(world: World) {
    let chat = world.chat(rules(&["similar 4/1m 90% mute 6h"]));
    assert_eq!(chat.says("加微信 abc123 领红包 🧧").await, None);
    assert_eq!(chat.says("加 微 信 ＡＢＣ１２３ 领 红 包 🧧🧧🧧").await, None);
    assert_eq!(chat.says("加\u{200b}微信aBc123领红包包包 🧧\u{fe0f}").await, None);
    assert_eq!(chat.says("加微信ⓐⓑⓒ①②③领红包🧧").await.unwrap().reason().percent(), 100);
}

async fn blank_messages_are_similar_and_those_without_a_text_are_not_compared(world: World) {
    let chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    for _ in 0..10 {
        assert_eq!(chat.writes_to("bob").await, None, "pictures are not alike");
    }
    assert_eq!(chat.says("").await, None);
    assert_eq!(chat.says("\n\u{200b}").await, None);
    assert!(chat.says("  ").await.is_some());
}

async fn only_so_many_texts_are_remembered(world: World) {
    let mut chat = world.chat(rules(&["similar 2/1h 90% mute 6h"]));
    for between in [62, 63] {
        assert_eq!(chat.says("buy gold").await, None);
        for number in 0..between {
            let at = chat.at + MICROSECOND;
            assert_eq!(chat.at_exactly(at).await.says(&noise(between * 100 + number)).await, None);
        }
        let at = chat.at + MICROSECOND;
        let remembered = chat.at_exactly(at).await.says("buy gold").await.is_some();
        assert_eq!(remembered, between == 62, "64 are kept, the newest among them");
        chat.monitor.unmute("alice").await.unwrap();
    }
}

async fn senders_do_not_share_anything(world: World) {
    let chat = world.chat(Rule::recommended());
    let long = "k".repeat(1000);
    let senders: [&[u8]; 8] =
        [b"", b"=", b"}", b"{}", b"a\r\nb", b"\0", b"\xff\xfe", long.as_bytes()];
    for number in 0..3 {
        for sender in senders {
            let message = Message::from(sender).to(sender).text("buy gold");
            assert_eq!(chat.send(message).await.is_some(), number == 2, "{sender:?}");
        }
    }
    assert_eq!(chat.audit(), [(6, false); 8]);
    assert_eq!(chat.says("buy gold").await, None);
}

async fn whoever_is_unmuted_begins_anew(world: World) {
    let chat = world.chat(Rule::recommended());
    for _ in 0..6 {
        chat.says("buy gold").await;
        chat.writes_to("bob").await;
    }
    assert!(chat.mute().await.is_some());
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.mute().await, None);
    assert_eq!(chat.says("buy gold").await, None, "what was said before is forgotten");
    assert_eq!(chat.says("buy gold").await, None);
    assert!(chat.says("buy gold").await.is_some());
    chat.monitor.unmute("bob").await.unwrap();
}

async fn a_monitor_without_rules_heeds_the_mutes_of_others(world: World) {
    let chat = world.chat(rules(&["events 2/1s mute 10s"]));
    let other = SpeechMonitor::new([], chat.world.store.clone());
    let message = Message::from("alice").text("hello");
    for _ in 0..5 {
        assert!(other.check(&message).await.unwrap().is_delivered());
    }
    assert_eq!(chat.says("one").await, None);
    assert!(chat.says("two").await.is_some());
    assert!(!other.check(&message).await.unwrap().is_delivered());
}
