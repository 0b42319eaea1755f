//! Senders in process: implements [`SpeechStore`] for [`MemoryStore`].

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::decision::{Mute, Reason};
use super::entries::Entries;
use super::fingerprint::Fingerprint;
use super::rule::Rule;
use super::store::{
    History, Log, MuteOutcome, MuteRequest, REMEMBERED, RecordedMessage, SpeechStore,
};
use crate::MemoryStore;
use crate::key::Key;
use crate::store::{ExpiringValue, Keep, Room, StoreFuture};
use crate::time::micros;

/// The messages and the mute of one sender.
#[derive(Default)]
pub(crate) struct Sender {
    messages: Entries<Uuid>,
    peers: Entries<Key>,
    texts: Entries<(Uuid, Fingerprint)>,
    /// When all entries of the logs have expired.
    logs_over_us: u64,
    /// Boxed, because few senders have one.
    mute: Option<Box<ActiveMute>>,
}

struct ActiveMute {
    id: Uuid,
    until_us: u64,
    /// Until when the mute counts among the sender's mutes.
    forget_us: u64,
    /// How many mutes of rules in a row it is.
    nth: usize,
    /// The same instant as `until_us` by the system clock, computed when the mute was imposed.
    until: SystemTime,
    reason: Reason,
    lengthened: bool,
}

impl Sender {
    /// Records a message if there is room for it, and returns whether it was recorded.
    fn record(
        &mut self,
        message: &RecordedMessage,
        now_us: u64,
        room: &mut Room<'_>,
    ) -> (History, bool) {
        // Drops the entries that the rules no longer need.
        self.messages.expire(now_us, message.retention(Log::Messages));
        self.peers.expire(now_us, message.retention(Log::Peers));
        self.texts.expire(now_us, message.retention(Log::Texts));
        let new = NewEntries::of(self, message);
        let is_recorded = room.reserve(new.growth(self, message));
        let unrecorded = if is_recorded { self.add(message, new, now_us) } else { new };
        let (counts, texts) = self.read(message, &unrecorded, now_us);
        (History::new(Duration::from_micros(now_us), counts, texts, self.mute(now_us)), is_recorded)
    }

    /// Adds the entries, and returns none.
    fn add(&mut self, message: &RecordedMessage, new: NewEntries, now_us: u64) -> NewEntries {
        let max_entries = |log| message.retention(log).1;
        if let Some(peer) = &new.peer {
            self.peers.remove(|it| it == peer);
        }
        self.messages.add(now_us, new.message, max_entries(Log::Messages));
        self.peers.add(now_us, new.peer, max_entries(Log::Peers));
        self.texts.add(now_us, new.text, max_entries(Log::Texts));
        for (longest_window, max_entries) in Log::ALL.map(|log| message.retention(log)) {
            if max_entries > 0 {
                self.logs_over_us = self.logs_over_us.max(now_us + micros(longest_window));
            }
        }
        NewEntries::default()
    }

    /// Returns the count of each rule, and the other texts if a rule compares them. The counts include
    /// the entries that were not recorded.
    fn read(
        &self,
        message: &RecordedMessage,
        unrecorded: &NewEntries,
        now_us: u64,
    ) -> (Vec<u32>, Vec<(Duration, Fingerprint)>) {
        let active_mute_us = self.active_mute(now_us).map_or(0, |it| it.reason.rule.mute_us());
        let NewEntries { message: id, peer, text } = unrecorded;
        let count = |rule: &Rule| match (Log::of(rule), rule.window_us()) {
            (log, _) if message.retention(log).1 == 0 || rule.mute_us() <= active_mute_us => 0,
            (Log::Messages, window_us) => {
                self.messages.count(now_us, window_us, |_| true) + usize::from(id.is_some())
            }
            (Log::Peers, window_us) => {
                let others = |it: &Key| Some(it) != peer.as_ref();
                self.peers.count(now_us, window_us, others) + usize::from(peer.is_some())
            }
            (Log::Texts, window_us) => {
                self.texts.count(now_us, window_us, |_| true) + usize::from(text.is_some())
            }
        };
        let rules = message.rules.as_slice();
        let counts: Vec<u32> =
            rules.iter().map(|rule| u32::try_from(count(rule)).unwrap_or(u32::MAX)).collect();
        let compares_texts =
            |(rule, count): (&Rule, &u32)| Log::of(rule) == Log::Texts && *count >= rule.count();
        let mut texts = Vec::new();
        if rules.iter().zip(&counts).any(compares_texts) {
            let others = self.texts.iter().filter(|(_, (id, _))| *id != message.id);
            texts = others
                .map(|(at_us, (_, text))| (Duration::from_micros(now_us - at_us), text.clone()))
                .collect();
        }
        (counts, texts)
    }

    fn impose(&mut self, request: &MuteRequest, now_us: u64) -> MuteOutcome {
        let MuteRequest { id, timestamp, reason, .. } = *request;
        let mute_us = reason.rule.mute_us();
        let begins_us = if request.is_manual() { now_us } else { micros(timestamp) };
        let active_mute = self.active_mute(now_us);
        let nth = self.mute.as_ref().map_or(0, |it| it.nth);
        let is_next = !request.is_manual() && (active_mute.is_none() || nth == 0);
        let nth = nth + usize::from(is_next);
        let until_us = begins_us + micros(request.length_of(nth));
        let is_longer = active_mute.is_none_or(|active_mute| {
            let is_longer = request.is_manual() || mute_us > active_mute.reason.rule.mute_us();
            is_longer && until_us > active_mute.until_us && id != active_mute.id
        });
        if until_us > now_us && is_longer {
            let lengthened = active_mute.is_some();
            let until = SystemTime::now() + Duration::from_micros(until_us - now_us);
            let is_remembered = !request.first_mutes.is_empty();
            let forget_us = until_us + if is_remembered { micros(REMEMBERED) } else { 0 };
            let mute = ActiveMute { id, until_us, forget_us, nth, until, reason, lengthened };
            self.mute = Some(Box::new(mute));
        }
        self.mute_outcome(id, now_us)
    }

    /// Returns the active mute, and whether this message has caused it.
    fn mute_outcome(&self, id: Uuid, now_us: u64) -> MuteOutcome {
        let by_this = self.active_mute(now_us).filter(|active_mute| active_mute.id == id);
        let lengthened = by_this.is_some_and(|active_mute| active_mute.lengthened);
        MuteOutcome::new(self.mute(now_us), by_this.is_some(), lengthened)
    }

    fn active_mute(&self, now_us: u64) -> Option<&ActiveMute> {
        self.mute.as_deref().filter(|active_mute| active_mute.until_us > now_us)
    }

    fn mute(&self, now_us: u64) -> Option<Mute> {
        let active_mute = self.active_mute(now_us)?;
        let remaining = Duration::from_micros(active_mute.until_us - now_us);
        Some(Mute::new(active_mute.reason, remaining, active_mute.until))
    }

    /// Returns when to drop parts of this: the logs when all entries have expired, the mute at its end.
    fn keep(&self, now_us: u64) -> Keep {
        let mute_over_us = self.mute.as_ref().map(|mute| mute.forget_us).filter(|at| *at > now_us);
        let logs_over_us = Some(self.logs_over_us).filter(|over_us| *over_us > now_us);
        logs_over_us.or(mute_over_us).map_or(Keep::Not, Keep::Until)
    }
}

impl ExpiringValue for Sender {
    fn heap_bytes(&self) -> usize {
        let logs = self.messages.bytes() + self.peers.bytes() + self.texts.bytes();
        logs + self.mute.as_ref().map_or(0, |_| size_of::<ActiveMute>())
    }

    fn expire(&mut self, now_us: u64) -> Keep {
        let mute = self.mute.take().filter(|mute| mute.forget_us > now_us);
        *self = Self { mute, ..Self::default() };
        self.keep(now_us)
    }

    const SHRINKS: bool = true;

    fn shrink(&mut self) -> bool {
        let has_texts = self.texts.len() > 1;
        let is_small = !has_texts && self.messages.len() <= 1 && self.peers.len() <= 1;
        self.texts.shrink(|(id, text)| (*id, text.coarse()));
        // Texts take the most. The rules that only count go on as long as there are any.
        if !has_texts {
            self.messages.shrink(Uuid::clone);
            self.peers.shrink(Key::clone);
        }
        is_small && self.mute.is_none()
    }
}

/// The entries that a message adds to the logs.
#[derive(Default)]
struct NewEntries {
    message: Option<Uuid>,
    /// An entry of the same peer is replaced.
    peer: Option<Key>,
    text: Option<(Uuid, Fingerprint)>,
}

impl NewEntries {
    fn of(sender: &Sender, message: &RecordedMessage) -> Self {
        let needed = |log| message.retention(log).1 > 0;
        let is_first = needed(Log::Messages) && !sender.messages.any(|id| *id == message.id);
        let adds_text = needed(Log::Texts) && !sender.texts.any(|(id, _)| *id == message.id);
        let text = message.text.as_ref().filter(|_| adds_text);
        Self {
            message: is_first.then_some(message.id),
            peer: message.peer.clone().filter(|_| needed(Log::Peers)),
            text: text.map(|text| (message.id, text.clone())),
        }
    }

    /// Returns by how many bytes the logs may grow if the message is recorded.
    fn growth(&self, sender: &Sender, message: &RecordedMessage) -> usize {
        let max_entries = |log| message.retention(log).1;
        let peer = self.peer.as_ref().filter(|peer| !sender.peers.any(|it| it == *peer));
        sender.messages.growth(self.message.as_ref(), max_entries(Log::Messages))
            + sender.peers.growth(peer, max_entries(Log::Peers))
            + sender.texts.growth(self.text.as_ref(), max_entries(Log::Texts))
    }
}

impl MemoryStore {
    /// Sets how many bytes the senders of [`SpeechMonitor`](crate::moderation::SpeechMonitor)s may
    /// take, in this store and all its clones. Defaults to 256 MiB.
    ///
    /// A sender takes about 230 bytes. Each message takes 60 bytes and the fingerprint of its text, which
    /// has at most 258 bytes. A message is kept for the longest window of the rules, and at most 64 texts
    /// of a sender are kept. So 256 MiB have room for a million messages.
    ///
    /// When the bytes are used up, expired entries are dropped first. Then the senders with many texts
    /// lose the older half, less is kept of each text, and senders of a single message are forgotten. A
    /// mute is always imposed and kept. If there are only mutes, a message is checked against the recorded
    /// messages of its sender, but not recorded. If the sender is not muted, the monitor then returns
    /// [`StoreError::TooManyBytes`](crate::StoreError::TooManyBytes).
    #[must_use]
    pub fn speech_bytes(self, bytes: usize) -> Self {
        self.table::<Sender>().set_budget(bytes);
        self
    }

    /// Returns how many bytes the senders of speech monitors take. Some of them may have expired.
    ///
    /// This is the sum of the requested allocations. The allocator itself takes some more, and hash
    /// tables that have grown keep their size.
    #[must_use]
    pub fn speech_bytes_used(&self) -> usize {
        self.table::<Sender>().bytes()
    }

    fn update<T>(&self, key: &Key, change: impl Fn(&mut Sender, u64) -> T) -> StoreFuture<T> {
        StoreFuture::ready(
            self.table::<Sender>().update(key.as_bytes(), |sender, now_us| {
                (change(sender, now_us), sender.keep(now_us))
            }),
        )
    }
}

impl SpeechStore for MemoryStore {
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        let senders = self.table::<Sender>();
        let recorded = senders.update_within(message.sender.as_bytes(), |sender, now_us, room| {
            (sender.record(message, now_us, room), sender.keep(now_us))
        });
        StoreFuture::ready(recorded.map(|(mut history, is_recorded)| {
            history.not_recorded = (!is_recorded).then(|| senders.too_many_bytes());
            history
        }))
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        self.update(&request.sender, |sender, now_us| sender.impose(request, now_us))
    }

    fn mute_outcome(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        self.update(&request.sender, |sender, now_us| sender.mute_outcome(request.id, now_us))
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        self.update(sender, |sender, now_us| sender.mute(now_us))
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        StoreFuture::ready(self.table::<Sender>().update(sender.as_bytes(), |_, _| ((), Keep::Not)))
    }

    fn muted_senders(&self, position: u64, count: usize) -> StoreFuture<(Vec<Key>, Option<u64>)> {
        let muted = |key: &[u8], sender: &Sender, now_us| {
            sender.active_mute(now_us).map(|_| Key::from_stored(key))
        };
        StoreFuture::ready(Ok(self.table::<Sender>().page(position, count, muted)))
    }
}
