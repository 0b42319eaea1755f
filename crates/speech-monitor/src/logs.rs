//! [`Logs`]: what is kept of a sender's messages, in process and on Redis.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;
use tower_sliding_window::store::{RedisCommands, RedisScript};
use tower_sliding_window::{Key, RedisStore, StoreError};
use uuid::Uuid;

use crate::fingerprint::Fingerprint;
use crate::rule::{Counted, MAX_TEXTS, Rule};

/// For how long after its end a mute is in a row with the next one.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// The Redis keys of a sender: the three logs, and the mutes in a row.
const NAMES: [&str; 4] = ["messages", "peers", "prints", "row"];

/// The rules of a monitor, the longest mute first.
#[derive(Debug)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// How long and how many entries each log of a sender keeps.
    of_sender: [Retention; 3],
    /// The same of a text, whose peers are its senders.
    of_text: [Retention; 3],
}

/// How long and how many entries a log keeps. No entries if none is needed.
type Retention = (Duration, u32);

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.mute()));
        let retention = |log, of_text| {
            let count_there = |rule: &&Rule| log_of(rule) == log && is_campaign(rule) == of_text;
            let window = rules.iter().filter(count_there).map(Rule::window).max();
            // A rule triggers if the count-th newest entry is in its window. Older ones don't matter,
            // except that a text is compared with all others.
            let most = rules.iter().filter(count_there).map(Rule::count).max().unwrap_or(0);
            (window.unwrap_or_default(), if log == TEXTS && most > 0 { MAX_TEXTS } else { most })
        };
        let of_sender = [MESSAGES, PEERS, TEXTS].map(|log| retention(log, false));
        let of_text = [MESSAGES, PEERS, TEXTS].map(|log| retention(log, true));
        Self { rules, of_sender, of_text }
    }

    /// Returns how long a text must be for any rule to compare it.
    pub(crate) fn min_length(&self) -> u16 {
        let similar = |rule: &&Rule| log_of(rule) == TEXTS;
        self.rules.iter().filter(similar).map(Rule::get_min_length).min().unwrap_or(0)
    }

    /// Returns how long a text must be to belong to a campaign, or `None` without such a rule.
    pub(crate) fn campaign_length(&self) -> Option<u16> {
        let campaigns = self.rules.iter().filter(|rule| is_campaign(rule));
        campaigns.map(Rule::get_min_length).min()
    }
}

const MESSAGES: usize = 0;
const PEERS: usize = 1;
const TEXTS: usize = 2;

/// Returns the log that a rule counts in.
fn log_of(rule: &Rule) -> usize {
    match rule.counted() {
        Counted::Events => MESSAGES,
        // The senders of a text are recorded as if the text had written to them.
        Counted::DistinctPeers | Counted::Campaign => PEERS,
        Counted::Similar { .. } => TEXTS,
    }
}

fn is_campaign(rule: &Rule) -> bool {
    rule.counted() == Counted::Campaign
}

/// A message to record. It is recorded once under its id.
pub(crate) struct Record {
    pub(crate) id: Uuid,
    pub(crate) sender: Key,
    pub(crate) peer: Option<Key>,
    pub(crate) text: Option<Fingerprint>,
    pub(crate) rules: Arc<Rules>,
    /// Whether the sender is muted.
    pub(crate) muted: bool,
    /// Whether the sender is a text that has one more sender, the peer.
    pub(crate) is_text: bool,
}

impl Record {
    /// Returns the retention of each log, without entries if the message adds none there.
    fn retention(&self) -> [Retention; 3] {
        let of = if self.is_text { self.rules.of_text } else { self.rules.of_sender };
        let adds = [true, self.peer.is_some(), self.text.is_some()];
        [MESSAGES, PEERS, TEXTS].map(|log| if adds[log] { of[log] } else { (Duration::ZERO, 0) })
    }
}

/// What the rules need to decide on a message.
pub(crate) struct History {
    /// Each rule, the longest mute first, with how many entries its window holds, this message included, or
    /// `None` if its mute is not longer than the one that stands.
    pub(crate) counts: Vec<(Rule, Option<u32>)>,
    /// The ages and the fingerprints of the sender's other texts, if a rule has to compare them.
    pub(crate) texts: Vec<(Duration, Fingerprint)>,
    /// How many mutes in a row the sender has had, and whether the last of them has not ended.
    pub(crate) nth: usize,
    pub(crate) stands: bool,
}

impl History {
    /// Returns how many entries the window of a rule holds.
    pub(crate) fn count(&self, rule: &Rule) -> u32 {
        self.counts.iter().find_map(|(it, count)| count.filter(|_| it == rule)).unwrap_or(0)
    }
}

/// A mute that was imposed.
pub(crate) struct Imposed {
    /// How many mutes in a row it is. 0 for a manual mute.
    pub(crate) nth: usize,
    pub(crate) remaining: Duration,
    /// How long it was imposed for, or longer if the rule was held to a shorter first mute.
    pub(crate) length: Duration,
}

/// The logs of all senders.
#[derive(Clone)]
pub(crate) enum Logs {
    InProcess(Arc<Mutex<InProcess>>),
    OnRedis(Arc<OnRedis>),
}

impl Logs {
    /// Records a message and returns what the rules need, as one atomic step.
    pub(crate) async fn record(&self, record: &Record) -> Result<History, StoreError> {
        match self {
            Self::InProcess(senders) => Ok(lock(senders).record(record)),
            Self::OnRedis(redis) => redis.record(record).await,
        }
    }

    /// Notes that a sender was muted. If that fails, the next mute is too short, and until the end of this one
    /// each message that triggers its rule tries to impose it again.
    pub(crate) async fn note(&self, sender: &Key, mute: &Imposed) -> Result<(), StoreError> {
        match self {
            Self::InProcess(senders) => {
                lock(senders).note(sender, mute);
                Ok(())
            }
            Self::OnRedis(redis) => redis.note(sender, mute).await,
        }
    }

    /// Forgets the messages of a sender, and the mutes in a row.
    pub(crate) async fn forget(&self, sender: &Key) -> Result<(), StoreError> {
        match self {
            Self::InProcess(senders) => {
                lock(senders).remove(&(false, sender.clone()));
                Ok(())
            }
            Self::OnRedis(redis) => {
                let mut command = redis::cmd("DEL");
                command.arg(&redis.names(sender, false)[..]);
                redis.commands.query(&command).await
            }
        }
    }
}

fn lock(senders: &Mutex<InProcess>) -> MutexGuard<'_, InProcess> {
    // No user code runs under the lock, so a poisoned value is consistent.
    senders.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct OnRedis {
    commands: RedisCommands,
    record: RedisScript,
    row: RedisScript,
}

impl OnRedis {
    pub(crate) fn new(store: &RedisStore, change: impl Fn(&str) -> String) -> Self {
        let [record, row] = [include_str!("../lua/record.lua"), include_str!("../lua/row.lua")];
        let [record, row] = [record, row].map(|text| RedisScript::new(&change(text)));
        Self { commands: store.commands(), record, row }
    }

    fn names(&self, sender: &Key, is_text: bool) -> [Vec<u8>; 4] {
        let of = if is_text { "text" } else { "log" };
        NAMES.map(|name| self.commands.key_name(sender, &format!("speech:{of}:{name}")))
    }

    async fn record(&self, record: &Record) -> Result<History, StoreError> {
        let number = |number: u64| number.to_string().into_bytes();
        let micros = |time: Duration| number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let mut arguments = vec![
            record.id.as_bytes().to_vec(),
            record.peer.as_ref().map_or(&[][..], Key::as_bytes).to_vec(),
            record.text.as_ref().map_or(&[][..], Fingerprint::as_bytes).to_vec(),
            number(record.muted.into()),
            micros(REMEMBERED),
        ];
        for (window, most) in record.retention() {
            arguments.extend([number(most.into()), micros(window)]);
        }
        for rule in &record.rules.rules {
            let (log, count) = (number(log_of(rule) as u64 + 1), number(rule.count().into()));
            arguments.extend([log, count, micros(rule.window()), micros(rule.mute())]);
        }
        let names = self.names(&record.sender, record.is_text);
        let call = || self.commands.script(&self.record, &names[..], &arguments);
        type Reply = (usize, bool, Vec<i64>, Vec<u64>, Vec<Vec<u8>>);
        let (nth, stands, counts, ages_us, texts): Reply = twice(call).await?;
        let texts: Option<Vec<_>> = texts.iter().map(|it| Fingerprint::from_bytes(it)).collect();
        let malformed = || StoreError::Protocol { message: "expected fingerprints".to_owned() };
        let texts = texts.ok_or_else(malformed)?;
        let texts = ages_us.into_iter().map(Duration::from_micros).zip(texts).collect();
        let counts = counts.into_iter().map(|count| u32::try_from(count).ok());
        let counts = record.rules.rules.iter().copied().zip(counts).collect();
        Ok(History { counts, texts, nth, stands })
    }

    async fn note(&self, sender: &Key, mute: &Imposed) -> Result<(), StoreError> {
        let [.., name] = self.names(sender, false);
        let names = [&name[..]];
        let [remaining, length, remembered] =
            [mute.remaining, mute.length, REMEMBERED].map(|time| time.as_micros() as u64);
        let arguments = (mute.nth, remaining, length, remembered);
        let _nth: u64 = twice(|| self.commands.script(&self.row, &names, &arguments)).await?;
        Ok(())
    }
}

/// Calls a script again if its reply was lost. A script that has run already gives the same reply.
async fn twice<T, F: Future<Output = Result<T, StoreError>>>(
    call: impl Fn() -> F,
) -> Result<T, StoreError> {
    match call().await {
        Err(error) if error.may_have_counted() => call().await,
        reply => reply,
    }
}

/// The senders of this process.
pub(crate) struct InProcess {
    start: Instant,
    /// The senders, and the texts of campaigns, by whether it is a text.
    senders: HashMap<(bool, Key), Sender, RandomState>,
    /// How many bytes all senders take, and how many they may take.
    bytes: usize,
    budget: usize,
}

/// The entries of a log with their times, the oldest first.
type Entries<T> = VecDeque<(Duration, T)>;

#[derive(Default)]
struct Sender {
    messages: Entries<Uuid>,
    peers: Entries<Key>,
    texts: Entries<(Uuid, Fingerprint)>,
    /// How many mutes in a row the sender has had, when the latest ends, and how long it was imposed for.
    nth: usize,
    until: Duration,
    length: Duration,
    /// When the last message came, and when nothing of this is needed any more.
    last: Duration,
    over: Duration,
}

impl InProcess {
    pub(crate) fn new(budget: usize) -> Self {
        let senders = HashMap::with_hasher(RandomState::new());
        Self { start: Instant::now(), senders, bytes: 0, budget }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn record(&mut self, record: &Record) -> History {
        let now = self.start.elapsed();
        self.change((record.is_text, record.sender.clone()), now, |sender| {
            let [messages, peers, texts] = record.retention();
            add(&mut sender.messages, now, record.id, messages, |it| *it == record.id, false);
            if let Some(peer) = &record.peer {
                add(&mut sender.peers, now, peer.clone(), peers, |it| it == peer, true);
            }
            if let Some(text) = &record.text {
                let is_there = |it: &(Uuid, Fingerprint)| it.0 == record.id;
                add(&mut sender.texts, now, (record.id, text.clone()), texts, is_there, false);
            }
            for (window, most) in [messages, peers, texts] {
                sender.over = sender.over.max(if most > 0 { now + window } else { now });
            }
            sender.last = now;
            sender.history(record, now)
        })
    }

    fn note(&mut self, sender: &Key, mute: &Imposed) {
        let now = self.start.elapsed();
        self.change((false, sender.clone()), now, |sender| {
            let stands = sender.until > now;
            sender.length = mute.length.max(if stands { sender.length } else { Duration::ZERO });
            sender.nth = mute.nth.max(if sender.is_remembered(now) { sender.nth } else { 0 });
            sender.until = sender.until.max(now + mute.remaining);
            sender.over = sender.over.max(sender.until + REMEMBERED);
        });
    }

    fn change<T>(
        &mut self,
        key: (bool, Key),
        now: Duration,
        change: impl FnOnce(&mut Sender) -> T,
    ) -> T {
        let mut sender = self.remove(&key).unwrap_or_default();
        let result = change(&mut sender);
        if sender.over > now {
            self.bytes += sender.bytes();
            self.senders.insert(key, sender);
            self.make_room(now);
        }
        result
    }

    fn remove(&mut self, key: &(bool, Key)) -> Option<Sender> {
        let sender = self.senders.remove(key)?;
        self.bytes -= sender.bytes();
        Some(sender)
    }

    /// Forgets senders that are over, and then what those wrote that wrote longest ago, until a tenth is free.
    /// What is known of a mute that stands stays.
    fn make_room(&mut self, now: Duration) {
        if self.bytes <= self.budget {
            return;
        }
        self.senders.retain(|_, sender| sender.over > now);
        self.bytes = self.senders.values().map(Sender::bytes).sum();
        if self.bytes <= self.budget / 10 * 9 {
            return;
        }
        let mut oldest: Vec<_> =
            self.senders.iter().map(|(key, it)| (it.last, key.clone())).collect();
        oldest.sort_unstable();
        for (_, key) in oldest {
            if self.bytes <= self.budget / 10 * 9 {
                return;
            }
            if let Some(sender) = self.remove(&key).filter(|sender| sender.until > now) {
                let Sender { nth, until, length, over, .. } = sender;
                let mute = Sender { nth, until, length, over, ..Sender::default() };
                self.bytes += mute.bytes();
                self.senders.insert(key, mute);
            }
        }
    }
}

/// Adds an entry unless it is there, or moves it to the end, and drops what is too old or too much.
fn add<T>(
    entries: &mut Entries<T>,
    now: Duration,
    entry: T,
    (window, most): (Duration, u32),
    is_there: impl Fn(&T) -> bool,
    moves: bool,
) {
    if most == 0 {
        return;
    }
    let place = entries.iter().position(|(_, it)| is_there(it));
    if let Some(place) = place.filter(|_| moves) {
        entries.remove(place);
    }
    if place.is_none() || moves {
        entries.push_back((now, entry));
    }
    let is_old = |entries: &Entries<T>| entries.front().is_some_and(|(at, _)| now - *at >= window);
    while entries.len() > most as usize || is_old(entries) {
        entries.pop_front();
    }
}

impl Sender {
    fn is_remembered(&self, now: Duration) -> bool {
        self.until + REMEMBERED > now
    }

    fn history(&self, record: &Record, now: Duration) -> History {
        let (retention, stands) = (record.retention(), self.until > now);
        let muted = if record.muted && stands { self.length } else { Duration::ZERO };
        let count = |rule: &Rule| match log_of(rule) {
            _ if rule.mute() <= muted => None,
            log if retention[log].1 == 0 => Some(0),
            MESSAGES => Some(within(&self.messages, now, rule)),
            PEERS => Some(within(&self.peers, now, rule)),
            _ => Some(within(&self.texts, now, rule)),
        };
        let counts: Vec<_> = record.rules.rules.iter().map(|rule| (*rule, count(rule))).collect();
        let compares = |(rule, count): &(Rule, Option<u32>)| {
            log_of(rule) == TEXTS && count.is_some_and(|count| count >= rule.count())
        };
        let mut texts = Vec::new();
        if counts.iter().any(compares) {
            let others = self.texts.iter().filter(|(_, (id, _))| *id != record.id);
            texts.extend(others.map(|(at, (_, text))| (now - *at, text.clone())));
        }
        let nth = if self.is_remembered(now) { self.nth } else { 0 };
        History { counts, texts, nth, stands }
    }

    /// Returns about how many bytes the sender takes: tables are counted by what they have allocated.
    fn bytes(&self) -> usize {
        let peers: usize = self.peers.iter().map(|(_, peer)| peer.as_bytes().len()).sum();
        let texts: usize = self.texts.iter().map(|(_, (_, it))| 16 + it.as_bytes().len()).sum();
        let tables = self.messages.capacity() * size_of::<(Duration, Uuid)>()
            + self.peers.capacity() * size_of::<(Duration, Key)>()
            + self.texts.capacity() * size_of::<(Duration, (Uuid, Fingerprint))>();
        2 * (size_of::<Self>() + size_of::<(bool, Key)>()) + tables + peers + texts
    }
}

/// Returns how many entries are in the window of a rule.
fn within<T>(entries: &Entries<T>, now: Duration, rule: &Rule) -> u32 {
    let inside = entries.iter().rev().take_while(|(at, _)| now - *at < rule.window());
    u32::try_from(inside.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sender {
        /// Returns how many bytes the sender takes at least.
        fn allocated(&self) -> usize {
            let messages = self.messages.capacity() * size_of::<(Duration, Uuid)>();
            let peers = self.peers.capacity() * size_of::<(Duration, Key)>();
            let texts = self.texts.capacity() * size_of::<(Duration, (Uuid, Fingerprint))>();
            size_of::<Self>() + size_of::<Key>() + messages + peers + texts
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_a_sender_are_counted() {
        for rule in ["similar 3/5m 90% mute 1h", "peers 900/5m mute 1h", "events 1000/5m mute 1h"] {
            let rules = Arc::new(Rules::new([rule.parse().unwrap()]));
            let mut senders = InProcess::new(256 << 20);
            let says = |senders: &mut InProcess, number: u32| {
                senders.record(&Record {
                    id: Uuid::new_v4(),
                    sender: Key::from("alice"),
                    peer: Some(Key::from(number)),
                    text: Some(Fingerprint::of(&number.to_string())),
                    rules: rules.clone(),
                    muted: false,
                    is_text: false,
                });
            };
            (0..800).for_each(|number| says(&mut senders, number));
            // Only the last message is within the window.
            tokio::time::advance(Duration::from_secs(300)).await;
            says(&mut senders, 800);
            let allocated: usize = senders.senders.values().map(Sender::allocated).sum();
            assert!(allocated <= senders.bytes(), "{rule}: {allocated}, not {}", senders.bytes());
        }
    }
}
