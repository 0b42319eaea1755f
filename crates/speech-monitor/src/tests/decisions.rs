//! What the monitor decides, in process and on Redis, with a clock that the test moves. Mutes on Redis go by
//! its own clock, so they do not end there.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use test_support::clock::{Clock, on_both};
use tokio::time::sleep;

use super::{Audit, HOUR, is_delivered, rules};
use crate::fingerprint::Fingerprint;
use crate::rule::Counted;
use crate::{Message, Mute, Rule, SpeechMonitor, similarity};

const MICROSECOND: Duration = Duration::from_micros(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A monitor under test, and what its hook got.
struct Chat {
    clock: Clock,
    start: Duration,
    monitor: SpeechMonitor,
    audit: Audit,
}

impl Chat {
    fn new(clock: Clock, texts: &[&str]) -> Self {
        let (start, monitor) = (clock.now(), SpeechMonitor::in_process([]));
        let mut chat = Self { clock, start, monitor, audit: Audit::default() };
        chat.use_rules(rules(texts));
        chat
    }

    /// A monitor with other rules. In process it has other senders too.
    fn use_rules(&mut self, rules: impl IntoIterator<Item = Rule>) {
        self.monitor = self.audit.of(match self.clock.store() {
            None => SpeechMonitor::in_process(rules),
            Some(store) => SpeechMonitor::with_scripts(rules, store, Clock::edited),
        });
    }

    /// Moves the clock to a time after the start.
    async fn at(&mut self, at: Duration) -> &mut Self {
        self.clock.advance(self.start + at - self.clock.now()).await;
        self
    }

    /// Sends a message, and returns the sender's mute if it is not delivered.
    async fn send(&self, message: Message) -> Option<Mute> {
        let is_delivered = is_delivered(&self.monitor, &message).await;
        let mute = self.monitor.mute_of(message.sender.clone()).await.unwrap();
        assert_eq!(mute.is_none(), is_delivered);
        mute
    }

    /// Sends a text from Alice, and returns her mute.
    async fn says(&self, text: &str) -> Option<Mute> {
        self.send(Message::from("alice").text(text)).await
    }
}

/// Returns a text that is not similar to those of other numbers.
fn noise(number: usize) -> String {
    (0..12).map(|at| char::from_u32((0x4e00 + number * 12 + at) as u32).unwrap()).collect()
}

const RECOMMENDED: &str = "similar 5/5m 90% mute 12h; similar 3/1m 90% mute 6h; \
    peers 5/3m mute 24h; peers 9/5m mute 48h";

/// Two messages in five minutes are no spam, and the third one comes after the step.
#[tokio::test]
async fn clock_that_steps_back_moves_messages_no_closer() {
    let rules = ["similar 3/1m 90% mute 6h", "similar 5/5m 90% mute 12h"];
    let mut chat = Chat::new(Clock::on_redis().await, &rules);
    for _ in 0..2 {
        assert_eq!(chat.says("good morning, everyone").await, None);
        chat.clock.advance(2 * MINUTE).await;
    }
    chat.clock.step_back(5 * MINUTE).await;
    assert_eq!(chat.says("good morning, everyone").await, None, "three in four minutes");
}

#[tokio::test]
async fn messages_leave_window_after_clock_steps_back() {
    let mut chat = Chat::new(Clock::on_redis().await, &["peers 5/3m mute 24h"]);
    for peer in ["a", "b", "c", "d"] {
        assert_eq!(chat.send(Message::from("alice").to(peer)).await, None);
    }
    chat.clock.step_back(HOUR).await;
    assert_eq!(chat.send(Message::from("alice").to("a")).await, None);
    chat.clock.advance(3 * MINUTE).await;
    assert_eq!(chat.send(Message::from("alice").to("e")).await, None);
    // Those that the step has not yet caught up with still count.
    for peer in ["f", "g", "h"] {
        assert_eq!(chat.send(Message::from("alice").to(peer)).await, None);
    }
    chat.clock.step_back(HOUR).await;
    assert!(chat.send(Message::from("alice").to("i")).await.is_some());
}

/// Rules, the messages of a sender, and what the last message triggers. The messages are their seconds
/// and texts, or `@` and the peer that gets a picture.
const CASES: &[(&str, &str, &str)] = &[
    (
        "similar 5/5m 90% mute 12h",
        "0 Cheap gold; 70 Cheap gold; 140 Cheap gold; 210 Cheap gold; 299 cheap gold!",
        "similar 5/300s 90% mute 12h: 5 messages within 300s at 100% similarity",
    ),
    (
        // Only two of the first are within any minute, and the third is two minutes old later.
        RECOMMENDED,
        "0 加微信领红包; 20 加微信领红包！; 81 加 微信领红包; 141 今天天气很好; 142 加微信领红包; 143 hello; \
         440 加微信领红包; 450 加微信领红包; 499 加微信领红包",
        "similar 3/60s 90% mute 6h: 3 messages within 60s at 100% similarity",
    ),
    (
        // The first one is a minute old when the third comes.
        "similar 3/1m 90% mute 6h; similar 4/5m 90% mute 12h",
        "0 Cheap gold; 30 good morning, all; 59 Cheap gold; 60 Cheap gold; 61 Cheap gold",
        "similar 4/300s 90% mute 12h: 4 messages within 300s at 100% similarity",
    ),
    (
        // The fifth peer is too late.
        RECOMMENDED,
        "0 @a; 45 @b; 90 @c; 135 @d; 180 @e; 200 @f",
        "peers 5/180s mute 24h: 5 private-chat peers within 180s",
    ),
    (
        "peers 9/5m mute 48h",
        "0 @a; 37 @b; 74 @c; 111 @d; 148 @e; 185 @f; 222 @g; 259 @h; 296 @i",
        "peers 9/300s mute 48h: 9 private-chat peers within 300s",
    ),
    (
        // The first two have too little in common, and each has enough in common with the third.
        "similar 3/1m 90% mute 6h",
        "0 old silver and platinum; 0 cheap gold silver and pl; 0 cheap gold silver and platinum",
        "similar 3/60s 90% mute 6h: 3 messages within 60s at 90% similarity",
    ),
    (
        // Blank texts are similar to each other. Pictures are not compared.
        "similar 3/1m 90% min 0 mute 6h",
        "0 @bob; 0 @bob; 0 @bob; 0 @bob; 0 ; 0 \n\u{200b}; 0   ",
        "similar 3/60s 90% min 0 mute 6h: 3 messages within 60s at 100% similarity",
    ),
];

#[tokio::test]
async fn last_message_of_each_case_triggers_a_rule() {
    let parsed = |texts: &str| rules(&texts.split("; ").collect::<Vec<_>>());
    assert_eq!(parsed(RECOMMENDED), Rule::recommended());
    on_both(async |clock| {
        let mut chat = Chat::new(clock, &[]);
        for (index, (texts, messages, expected)) in CASES.iter().enumerate() {
            chat.use_rules(parsed(texts));
            let (start, sender) = (Duration::from_secs(1000 * index as u64), index.to_string());
            let mut mute = None;
            for message in messages.split("; ") {
                assert_eq!(mute, None, "earlier messages are delivered: {messages}");
                let (second, text) = message.split_once(' ').unwrap();
                let message = match text.strip_prefix('@') {
                    Some(peer) => Message::from(&sender).to(peer),
                    None => Message::from(&sender).text(text),
                };
                let at = start + Duration::from_secs(second.parse().unwrap());
                mute = chat.at(at).await.send(message).await;
            }
            assert_eq!(mute.expect(messages).reason, *expected);
            let events = chat.audit.take();
            let [event] = &events[..] else { panic!("one event for each mute: {events:?}") };
            assert_eq!((event.sender.as_bytes(), event.lengthened), (sender.as_bytes(), false));
        }
    })
    .await;
}

/// The mute is over, and both peers are still in the window.
#[tokio::test]
async fn message_to_nobody_is_held_to_no_rule_about_peers() {
    on_both(async |clock| {
        let chat = Chat::new(clock, &["peers 2/1h mute 1s"]);
        assert_eq!(chat.send(Message::from("alice").to("a")).await, None);
        assert!(chat.send(Message::from("alice").to("b")).await.is_some());
        sleep(Duration::from_millis(1_050)).await;
        assert_eq!(chat.says("good morning, everyone").await, None);
    })
    .await;
}

#[tokio::test]
async fn number_of_kept_texts_is_bounded() {
    on_both(async |clock| {
        let mut chat = Chat::new(clock, &["similar 2/1h 90% mute 6h"]);
        for between in [62, 63] {
            assert_eq!(chat.says("buy cheap gold").await, None);
            for number in 0..between {
                chat.clock.advance(MICROSECOND).await;
                assert_eq!(chat.says(&noise(between * 100 + number)).await, None);
            }
            // Texts that are too short to count take no place.
            for _ in 0..3 {
                assert_eq!(chat.says("ok").await, None);
            }
            chat.clock.advance(MICROSECOND).await;
            let is_muted = chat.says("buy cheap gold").await.is_some();
            assert_eq!(is_muted, between == 62, "64 texts are kept, including the newest");
            chat.monitor.unmute("alice").await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn manual_mute_begins_now_and_silences_exempt_senders_too() {
    let mut chat = Chat::new(Clock::in_process(), &["similar 2/1m 90% mute 12h"]);
    let rules_for_all = chat.monitor.clone();
    chat.monitor = chat.monitor.exempt(["support", "alice"]).exempt([*b"bob"]);
    for sender in ["support", "alice", "bob"].repeat(3) {
        assert_eq!(chat.send(Message::from(sender).text("how can I help?")).await, None);
    }
    let first = Message::from("support").text("how can I help?");
    assert!(is_delivered(&rules_for_all, &first).await, "nothing was recorded");

    chat.at(5 * MICROSECOND).await;
    let mute = chat.monitor.mute("alice", HOUR).await.unwrap();
    assert_eq!((&*mute.reason, mute.remaining), ("a manual mute", HOUR));
    assert_eq!(chat.says("hello").await, Some(mute));
    assert_eq!(chat.monitor.mute("alice", Duration::ZERO).await.unwrap().remaining, HOUR);
    let last = 5 * MICROSECOND + HOUR - MICROSECOND;
    assert!(chat.at(last).await.says("hello").await.is_some());
    assert_eq!(chat.at(last + MICROSECOND).await.says("hello").await, None);
    assert_eq!(chat.audit.seconds(), [(3600, false)]);
    chat.monitor.mute("alice", HOUR).await.unwrap();
    chat.monitor.unmute("alice").await.unwrap();
    assert_eq!(chat.says("hello").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_new_spammer_is_found_in_a_flood() {
    let audit = Audit::default();
    let monitor = audit.of(SpeechMonitor::with_budget(Rule::recommended(), 50_000));
    let says = async |sender: &str| {
        let message = Message::from(sender).text("buy cheap gold at example.com ".repeat(20));
        is_delivered(&monitor, &message).await
    };
    assert!(says("bob").await && says("bob").await && !says("bob").await);
    let mut spammers = 1;
    for number in 0..700 {
        tokio::time::advance(MICROSECOND).await;
        let stranger = if number % 2 == 0 { number } else { number % 100 };
        let message = Message::from(format!("stranger-{stranger}")).text(noise(number));
        assert!(is_delivered(&monitor, &message).await);
        if number % 7 == 0 {
            let name = number.to_string();
            assert!(says(&name).await && says(&name).await);
            assert!(!says(&name).await, "spammer {number} is muted");
            spammers += 1;
        }
    }
    for _ in 0..3 {
        assert!(!says("bob").await, "a mute stands, although its sender is forgotten");
    }
    assert_eq!(audit.take().len(), spammers, "and is not reported again");
    tokio::time::advance(HOUR * 100).await;
    assert!(says("alice").await);
}

/// The third and the fourth text are similar to the fifth.
const TEXTS: [&str; 7] = [
    "buy cheap gold",
    "b u y  cheap gold!",
    "old silver and platinum",
    "cheap gold silver and pl",
    "cheap gold silver and platinum",
    "ok",
    "o k !!!",
];
/// Mutes on Redis do not end while a history is played.
const ON_REDIS: [Duration; 3] =
    [HOUR, Duration::from_secs(2 * 3600), Duration::from_secs(12 * 3600)];
const IN_PROCESS: [Duration; 4] =
    [Duration::from_secs(20), MINUTE, HOUR, Duration::from_secs(2 * 3600)];

fn random_rule(rng: &mut Rng, mutes: &[Duration]) -> Rule {
    let kind = ["events", "peers", "similar"][rng.usize(..3)];
    let options = ["90%", "80% min 0", "90% min 22"][rng.usize(..3)];
    let options = if kind == "similar" { options } else { "" };
    let (count, window, mute) = (rng.u32(2..6), rng.u32(1..5) * 30, rng.choice(mutes).unwrap());
    format!("{kind} {count}/{window}s {options} mute {}s", mute.as_secs()).parse().unwrap()
}

/// Often a multiple of half a minute, plus or minus a microsecond.
fn random_pause(rng: &mut Rng) -> Duration {
    match rng.u8(..5) {
        0..3 => Duration::from_micros(rng.u64(..20_000_000)),
        _ => (rng.u32(..4) * MINUTE / 2 + rng.u32(..3) * MICROSECOND).saturating_sub(MICROSECOND),
    }
}

/// A sender, as the documentation of the crate defines it.
#[derive(Default)]
struct Model {
    /// When each message came, its peer, and its text.
    messages: Vec<(Duration, Option<u32>, Option<&'static str>)>,
    /// When the mute ends, and how long it was imposed for.
    until: Duration,
    length: Duration,
    /// The length of each mute that was imposed, and whether it lengthened another.
    events: Vec<(u64, bool)>,
}

impl Model {
    fn triggers(&self, rule: &Rule, now: Duration) -> bool {
        let inside = || self.messages.iter().filter(|(at, ..)| now - *at < rule.window());
        let (_, peer, text) = *self.messages.last().unwrap();
        let count = match rule.counted {
            Counted::Events => inside().count(),
            Counted::Peers if peer.is_none() => 0,
            Counted::Peers => inside().filter_map(|it| it.1).collect::<BTreeSet<_>>().len(),
            Counted::Similar { percent } => {
                let is_long = |text: &&str| Fingerprint::of(text).length() >= rule.min_length;
                let Some(text) = text.filter(is_long) else { return false };
                // It is similar to itself.
                let others = inside().filter_map(|it| it.2).filter(is_long);
                others.filter(|other| similarity(text, other) >= percent).count()
            }
        };
        count >= rule.count() as usize
    }

    /// Returns whether a message is delivered.
    fn check(&mut self, rules: &[Rule], now: Duration) -> bool {
        let stands = if self.until > now { self.length } else { Duration::ZERO };
        let longer = rules.iter().filter(|rule| rule.mute > stands && self.triggers(rule, now));
        if let Some(mute) = longer.map(|rule| rule.mute).max() {
            self.impose(mute, now);
        }
        self.until <= now
    }

    fn impose(&mut self, length: Duration, now: Duration) {
        if now + length > self.until {
            self.events.push((length.as_secs(), self.until > now));
            (self.until, self.length) = (now + length, length);
        }
    }
}

/// Plays a random history of a sender to a monitor and to the model.
async fn play(chat: &mut Chat, run: u32) {
    let (seed, on_redis) = (fastrand::u64(..), chat.clock.redis().is_some());
    let mut rng = Rng::with_seed(seed);
    let mutes = if on_redis { &ON_REDIS[..] } else { &IN_PROCESS };
    let rules: Vec<_> = (0..rng.usize(1..5)).map(|_| random_rule(&mut rng, mutes)).collect();
    chat.use_rules(rules.iter().copied());
    chat.audit.take();
    let (mut model, sender, start) = (Model::default(), format!("sender-{run}"), chat.clock.now());
    for step in 0..rng.u32(1..60) {
        let now = chat.clock.now() - start;
        // No time passes there for mutes.
        if on_redis && !model.length.is_zero() {
            model.until = now + model.length;
        }
        match rng.u8(..if on_redis { 21 } else { 22 }) {
            0..4 => chat.clock.advance(random_pause(&mut rng)).await,
            4 => {
                chat.monitor.unmute(&sender).await.unwrap();
                model = Model { events: model.events, ..Model::default() };
            }
            5..21 => {
                let peer = rng.bool().then(|| rng.u32(..6));
                let text = (rng.u8(..5) > 0).then(|| TEXTS[rng.usize(..TEXTS.len())]);
                let message = Message::from(&sender);
                let message = text.map_or(message.clone(), |text| message.text(text));
                let message = peer.map_or(message.clone(), |peer| message.to(peer));
                model.messages.push((now, peer, text));
                let delivered = is_delivered(&chat.monitor, &message).await;
                let expected = model.check(&rules, now);
                assert_eq!(delivered, expected, "seed {seed}, step {step}: {rules:?}");
            }
            _ => {
                let length = *rng.choice(mutes).unwrap();
                chat.monitor.mute(&sender, length).await.unwrap();
                model.impose(length, now);
            }
        }
        assert_eq!(chat.audit.seconds(), model.events, "seed {seed}, step {step}: {rules:?}");
    }
}

#[tokio::test]
async fn random_histories_agree_with_the_model() {
    on_both(async |clock| {
        let mut chat = Chat::new(clock, &[]);
        for run in 0..120 {
            play(&mut chat, run).await;
        }
    })
    .await;
}
