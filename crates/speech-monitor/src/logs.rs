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
/// The Redis keys of a sender: the three logs, and which rules have muted the sender.
const NAMES: [&str; 4] = ["messages", "peers", "prints", "mutes"];

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
    /// The remaining mute of the sender. Zero if there is none.
    pub(crate) muted: Duration,
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

    /// Returns the rules that could lengthen the mute.
    fn longer_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.rules.iter().filter(|rule| rule.mute() > self.muted)
    }
}

/// What the rules need to decide on a message.
pub(crate) struct History {
    /// Each rule that could lengthen the mute, the longest mute first, with how many entries its window
    /// holds, this message included, or `None` if the rule has caused the mute that stands.
    pub(crate) counts: Vec<(Rule, Option<u32>)>,
    /// The ages and the fingerprints of the sender's other texts, if a rule has to compare them.
    pub(crate) texts: Vec<(Duration, Fingerprint)>,
    /// How many mutes in a row the sender has had.
    pub(crate) nth: usize,
}

impl History {
    /// Returns how many entries the window of a rule holds.
    pub(crate) fn count(&self, rule: &Rule) -> u32 {
        self.counts.iter().find_map(|(it, count)| count.filter(|_| it == rule)).unwrap_or(0)
    }
}

/// A mute by a rule that is to be reported once.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) id: Uuid,
    pub(crate) sender: Key,
    pub(crate) rule: Rule,
    pub(crate) nth: usize,
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

    /// Notes for `remaining` that a rule has muted a sender. Returns whether this call, or the same one
    /// before, is the first to do so: of several messages that trigger a rule at once, one is.
    pub(crate) async fn claim(
        &self,
        claim: &Claim,
        remaining: Duration,
    ) -> Result<bool, StoreError> {
        match self {
            Self::InProcess(senders) => Ok(lock(senders).claim(claim, remaining)),
            Self::OnRedis(redis) => redis.claim(claim, remaining).await,
        }
    }

    /// Forgets the messages of a sender, and which rules have muted the sender.
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
    claim: RedisScript,
}

impl OnRedis {
    pub(crate) fn new(store: &RedisStore, change: impl Fn(&str) -> String) -> Self {
        let [record, claim] = [include_str!("../lua/record.lua"), include_str!("../lua/claim.lua")];
        let [record, claim] = [record, claim].map(|text| RedisScript::new(&change(text)));
        Self { commands: store.commands(), record, claim }
    }

    fn names(&self, sender: &Key) -> [Vec<u8>; 4] {
        NAMES.map(|name| self.commands.key_name(sender, &format!("speech:log:{name}")))
    }

    async fn record(&self, record: &Record) -> Result<History, StoreError> {
        let number = |number: u64| number.to_string().into_bytes();
        let micros = |time: Duration| number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let mut arguments = vec![
            record.id.as_bytes().to_vec(),
            record.peer.as_ref().map_or(&[][..], Key::as_bytes).to_vec(),
            record.text.as_ref().map_or(&[][..], Fingerprint::as_bytes).to_vec(),
            number(u64::from(!record.muted.is_zero())),
        ];
        for (window, most) in record.retention() {
            arguments.extend([number(most.into()), micros(window)]);
        }
        for rule in record.longer_rules() {
            let (log, count) = (number(log_of(rule) as u64 + 1), number(rule.count().into()));
            arguments.extend([log, count, micros(rule.window()), rule.to_string().into_bytes()]);
        }
        let names = self.names(&record.sender);
        let call = || self.commands.script(&self.record, &names[..], &arguments);
        type Reply = (usize, Vec<i64>, Vec<u64>, Vec<Vec<u8>>);
        let (nth, counts, ages_us, texts): Reply = twice(call).await?;
        let texts: Option<Vec<_>> = texts.iter().map(|it| Fingerprint::from_bytes(it)).collect();
        let malformed = || StoreError::Protocol { message: "expected fingerprints".to_owned() };
        let texts = texts.ok_or_else(malformed)?;
        let texts = ages_us.into_iter().map(Duration::from_micros).zip(texts).collect();
        let counts = counts.into_iter().map(|count| u32::try_from(count).ok());
        Ok(History { counts: record.longer_rules().copied().zip(counts).collect(), texts, nth })
    }

    async fn claim(&self, claim: &Claim, remaining: Duration) -> Result<bool, StoreError> {
        let Claim { id, sender, rule, nth } = claim;
        let [.., name] = self.names(sender);
        let names = [&name[..]];
        let id: &[u8] = id.as_bytes();
        let (mute_us, remembered_us) =
            (remaining.as_micros() as u64, REMEMBERED.as_micros() as u64);
        let arguments = (id, rule.to_string(), mute_us, remembered_us, *nth);
        let call = || self.commands.script(&self.claim, &names, &arguments);
        twice(call).await
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
    senders: HashMap<Key, Sender, RandomState>,
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
    /// Each rule that has muted the sender, until when, and by which message.
    mutes: Vec<(Rule, Duration, Uuid)>,
    /// How many mutes in a row the sender has had, and until when another one is in the row.
    row: (usize, Duration),
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
        self.change(&record.sender, now, |sender| {
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

    fn claim(&mut self, claim: &Claim, remaining: Duration) -> bool {
        let now = self.start.elapsed();
        self.change(&claim.sender, now, |sender| {
            sender.mutes.retain(|(_, until, _)| *until > now);
            if let Some((_, _, id)) = sender.mutes.iter().find(|(rule, ..)| *rule == claim.rule) {
                return *id == claim.id;
            }
            sender.mutes.push((claim.rule, now + remaining, claim.id));
            sender.row = (claim.nth, now + remaining + REMEMBERED);
            sender.over = sender.over.max(sender.row.1);
            true
        })
    }

    fn change<T>(&mut self, key: &Key, now: Duration, change: impl FnOnce(&mut Sender) -> T) -> T {
        let mut sender = self.remove(key).unwrap_or_default();
        let result = change(&mut sender);
        if sender.over > now {
            self.bytes += sender.bytes();
            self.senders.insert(key.clone(), sender);
            self.make_room(now);
        }
        result
    }

    fn remove(&mut self, key: &Key) -> Option<Sender> {
        let sender = self.senders.remove(key)?;
        self.bytes -= sender.bytes();
        Some(sender)
    }

    /// Forgets senders that are over, and then those that wrote longest ago, until a tenth is free.
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
            self.remove(&key);
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
    fn history(&self, record: &Record, now: Duration) -> History {
        let has_muted = |rule: &Rule| {
            let stands = |it: &&(Rule, Duration, Uuid)| it.0 == *rule && it.1 > now;
            !record.muted.is_zero() && self.mutes.iter().find(stands).is_some()
        };
        let retention = record.retention();
        let count = |rule: &Rule| match log_of(rule) {
            _ if has_muted(rule) => None,
            log if retention[log].1 == 0 => Some(0),
            MESSAGES => Some(within(&self.messages, now, rule)),
            PEERS => Some(within(&self.peers, now, rule)),
            _ => Some(within(&self.texts, now, rule)),
        };
        let counts: Vec<_> = record.longer_rules().map(|rule| (*rule, count(rule))).collect();
        let compares = |(rule, count): &(Rule, Option<u32>)| {
            log_of(rule) == TEXTS && count.is_some_and(|count| count >= rule.count())
        };
        let mut texts = Vec::new();
        if counts.iter().any(compares) {
            let others = self.texts.iter().filter(|(_, (id, _))| *id != record.id);
            texts.extend(others.map(|(at, (_, text))| (now - *at, text.clone())));
        }
        History { counts, texts, nth: if self.row.1 > now { self.row.0 } else { 0 } }
    }

    /// Returns about how many bytes the sender takes.
    fn bytes(&self) -> usize {
        let peers: usize = self.peers.iter().map(|(_, peer)| 64 + peer.as_bytes().len()).sum();
        let texts: usize = self.texts.iter().map(|(_, (_, it))| 64 + it.as_bytes().len()).sum();
        512 + 64 * self.mutes.len() + 32 * self.messages.len() + peers + texts
    }
}

/// Returns how many entries are in the window of a rule.
fn within<T>(entries: &Entries<T>, now: Duration, rule: &Rule) -> u32 {
    let inside = entries.iter().rev().take_while(|(at, _)| now - *at < rule.window());
    u32::try_from(inside.count()).unwrap_or(u32::MAX)
}
