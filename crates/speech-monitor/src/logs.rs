//! [`Logs`]: what is kept of a sender's messages, in process and on Redis.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;
use tower_sliding_window::{Key, RedisCommands, RedisScript, RedisStore, StoreError};
use uuid::Uuid;

use crate::decision::Message;
use crate::fingerprint::Fingerprint;
use crate::rule::{Counted, MAX_TEXTS, Rule};

/// The Redis keys of a sender, one for each log.
const NAMES: [&str; 3] = ["messages", "peers", "prints"];
/// The numbers of the logs.
const MESSAGES: usize = 0;
const PEERS: usize = 1;
const TEXTS: usize = 2;

/// Returns the log that a rule counts in.
fn log_of(rule: &Rule) -> usize {
    match rule.counted {
        Counted::Events => MESSAGES,
        Counted::Peers => PEERS,
        Counted::Similar { .. } => TEXTS,
    }
}

/// What a log keeps.
#[derive(Clone, Copy, Default)]
struct Kept {
    window: Duration,
    /// 0 if no rule counts there.
    entries: u32,
}

/// The rules of a monitor, and what they need.
pub(crate) struct Rules {
    /// The longest mute first.
    pub(crate) rules: Vec<Rule>,
    kept: [Kept; 3],
    /// How long a text must be for any rule to compare it.
    min_length: u16,
}

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by_key(|rule| Reverse(rule.mute));
        let mut kept = [Kept::default(); 3];
        for rule in &rules {
            let Kept { window, entries } = &mut kept[log_of(rule)];
            *window = rule.window().max(*window);
            // A rule triggers if the count-th newest entry is in its window. Older ones don't matter,
            // except that a text is compared with all others.
            let needed = if log_of(rule) == TEXTS { MAX_TEXTS } else { rule.count() };
            *entries = needed.max(*entries);
        }
        let similar = rules.iter().filter(|rule| log_of(rule) == TEXTS);
        let min_length = similar.map(|rule| rule.min_length).min().unwrap_or(0);
        Self { rules, kept, min_length }
    }
}

/// A message to record. It is recorded once under its id.
pub(crate) struct Record<'a> {
    pub(crate) id: Uuid,
    pub(crate) message: &'a Message,
    pub(crate) kept_for: &'a Rules,
    /// Those of the rules that are to decide on the message.
    pub(crate) rules: &'a [Rule],
}

impl Record<'_> {
    /// Returns what the message adds to each log: its id, its receiver if it is private, and its text if any rule would
    /// compare it.
    fn entries(&self) -> [Option<&[u8]>; 3] {
        let Message { peer, text, .. } = self.message;
        let text = text.as_ref().filter(|text| text.length() >= self.kept_for.min_length);
        [
            Some(self.id.as_bytes()),
            peer.as_ref().map(Key::as_bytes),
            text.map(Fingerprint::as_bytes),
        ]
    }

    /// Returns what each log keeps, no entries if the message adds none there.
    fn kept(&self) -> [Kept; 3] {
        let (entries, kept) = (self.entries(), self.kept_for.kept);
        std::array::from_fn(|log| if entries[log].is_some() { kept[log] } else { Kept::default() })
    }
}

/// What the rules need to decide on a message.
pub(crate) struct History {
    /// How many entries the window of each rule holds, this message included. 0 if the rule does not
    /// count the message.
    pub(crate) counts: Vec<u32>,
    /// The ages and the fingerprints of the sender's other texts, if a rule has to compare them.
    pub(crate) texts: Vec<(Duration, Fingerprint)>,
}

/// The logs of all senders.
#[derive(Clone)]
pub(crate) enum Logs {
    InProcess(Arc<Mutex<InProcess>>),
    OnRedis(Arc<OnRedis>),
}

impl Logs {
    /// Records a message and returns what the rules need, as one atomic step.
    pub(crate) async fn record(&self, record: &Record<'_>) -> Result<History, StoreError> {
        match self {
            Self::InProcess(senders) => Ok(lock(senders).record(record)),
            Self::OnRedis(redis) => redis.record(record).await,
        }
    }

    /// Forgets the messages of a sender.
    pub(crate) async fn forget(&self, sender: &Key) -> Result<(), StoreError> {
        match self {
            Self::InProcess(senders) => {
                lock(senders).remove(sender);
                Ok(())
            }
            Self::OnRedis(redis) => {
                let mut command = redis::cmd("DEL");
                command.arg(&redis.names(sender)[..]);
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
}

impl OnRedis {
    /// Takes the connection of a store. `edit` changes the text of the script, for tests.
    pub(crate) fn new(store: &RedisStore, edit: impl Fn(&str) -> String) -> Self {
        let record = RedisScript::new(&edit(include_str!("../lua/record.lua")));
        Self { commands: store.commands(), record }
    }

    fn names(&self, sender: &Key) -> [Vec<u8>; 3] {
        NAMES.map(|name| self.commands.key_name(sender, &format!("speech:log:{name}")))
    }

    async fn record(&self, record: &Record<'_>) -> Result<History, StoreError> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let kept = record.kept().map(|kept| (kept.entries, micros(kept.window)));
        let rules = record.rules.iter();
        let rules: Vec<_> =
            rules.map(|it| (log_of(it) + 1, it.count(), micros(it.window()))).collect();
        let entries = record.entries().map(Option::unwrap_or_default);
        let arguments = (&entries[..], &kept[..], rules);
        let names = self.names(&record.message.sender);
        let call = || self.commands.script(&self.record, &names[..], &arguments);
        type Reply = (Vec<u32>, Vec<u64>, Vec<Vec<u8>>);
        let (counts, ages_us, texts): Reply = match call().await {
            // The message is recorded once under its id, and the reply is the same.
            Err(error) if error.may_have_counted() => call().await,
            reply => reply,
        }?;
        let texts: Option<Vec<_>> = texts.into_iter().map(Fingerprint::from_bytes).collect();
        let malformed = || StoreError::Protocol { message: "expected fingerprints".to_owned() };
        let ages = ages_us.into_iter().map(Duration::from_micros);
        Ok(History { counts, texts: ages.zip(texts.ok_or_else(malformed)?).collect() })
    }
}

/// The senders of this process.
pub(crate) struct InProcess {
    start: Instant,
    senders: HashMap<Key, Sender, RandomState>,
    /// How many bytes all senders take, and how many they may take.
    bytes: usize,
    budget: usize,
}

#[derive(Default)]
struct Sender {
    /// The entries of each log with their times, the oldest first.
    logs: [VecDeque<(Duration, Arc<[u8]>)>; 3],
    /// When the sender was changed.
    last: Duration,
}

impl InProcess {
    pub(crate) fn new(budget: usize) -> Self {
        let senders = HashMap::with_hasher(RandomState::new());
        Self { start: Instant::now(), senders, bytes: 0, budget }
    }

    fn record(&mut self, record: &Record<'_>) -> History {
        let key = &record.message.sender;
        let (mut sender, now) = (self.remove(key).unwrap_or_default(), self.start.elapsed());
        sender.add(record, now);
        let history = sender.history(record, now);
        sender.last = now;
        self.bytes += sender.bytes(key);
        self.senders.insert(key.clone(), sender);
        if self.bytes > self.budget {
            self.make_room();
        }
        history
    }

    fn remove(&mut self, key: &Key) -> Option<Sender> {
        let sender = self.senders.remove(key)?;
        self.bytes -= sender.bytes(key);
        Some(sender)
    }

    /// Forgets those that wrote longest ago, until a tenth is free.
    fn make_room(&mut self) {
        let mut newest: Vec<_> = self.senders.drain().collect();
        newest.sort_unstable_by_key(|(_, sender)| Reverse(sender.last));
        self.bytes = 0;
        for (key, sender) in newest {
            self.bytes += sender.bytes(&key);
            self.senders.insert(key, sender);
            if self.bytes > self.budget / 10 * 9 {
                break;
            }
        }
    }
}

impl Sender {
    /// Adds the entries of a message, and drops what is too old or too much.
    fn add(&mut self, record: &Record<'_>, now: Duration) {
        for (number, (entry, kept)) in record.entries().into_iter().zip(record.kept()).enumerate() {
            let (Some(entry), log) = (entry, &mut self.logs[number]) else { continue };
            if number == PEERS {
                log.retain(|(_, peer)| **peer != *entry);
            }
            log.push_back((now, entry.into()));
            let is_old = |(at, _): &(Duration, _)| now - *at >= kept.window;
            while log.len() > kept.entries as usize || log.front().is_some_and(is_old) {
                log.pop_front();
            }
        }
    }

    fn history(&self, record: &Record<'_>, now: Duration) -> History {
        let (kept, rules) = (record.kept(), record.rules);
        let count = |rule: &Rule| {
            let (log, kept) = (&self.logs[log_of(rule)], kept[log_of(rule)]);
            let inside = log.iter().rev().take_while(|(at, _)| now - *at < rule.window());
            if kept.entries == 0 { 0 } else { inside.count() as u32 }
        };
        let counts: Vec<u32> = rules.iter().map(count).collect();
        let mut of_rules = rules.iter().zip(&counts);
        let mut texts = Vec::new();
        if of_rules.any(|(rule, count)| log_of(rule) == TEXTS && *count >= rule.count()) {
            // The last one is that of this message.
            let others = self.logs[TEXTS].iter().rev().skip(1);
            texts.extend(others.filter_map(|(at, text)| {
                Some((now - *at, Fingerprint::from_bytes(text.clone())?))
            }));
        }
        History { counts, texts }
    }

    /// Returns about how many bytes the sender takes: tables are counted by what they have allocated.
    fn bytes(&self, id: &Key) -> usize {
        let of_log = |log: &VecDeque<(Duration, Arc<[u8]>)>| {
            let entries: usize = log.iter().map(|(_, entry)| 16 + entry.len()).sum();
            log.capacity() * size_of::<(Duration, Arc<[u8]>)>() + entries
        };
        let logs: usize = self.logs.iter().map(of_log).sum();
        2 * (size_of::<Self>() + size_of::<Key>()) + id.as_bytes().len() + logs
    }
}
