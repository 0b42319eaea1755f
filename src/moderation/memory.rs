//! What senders said, in the memory of this process.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::decision::{Mute, Reason};
use super::entries::Entries;
use super::rule::Rule;
use super::rules::Log;
use super::store::{History, MuteOutcome, MuteRequest, RecordedMessage, SpeechStore};
use crate::key::Key;
use crate::store::{ExpiringValue, Keep, MemoryStore, StoreFuture};
use crate::time::micros;

/// What is kept of one sender.
#[derive(Default)]
pub(crate) struct Speech {
    messages: Entries<Uuid>,
    peers: Entries<Key>,
    texts: Entries<(Uuid, Arc<str>)>,
    /// Until when the logs matter.
    logs_over_us: u64,
    /// Few senders have one.
    mute: Option<Box<ActiveMute>>,
}

struct ActiveMute {
    id: Uuid,
    until_us: u64,
    /// The same on the system's clock, as it was when the mute began.
    until: SystemTime,
    reason: Reason,
    lengthened: bool,
}

impl Speech {
    /// Records a message if it finds room in so many bytes.
    fn record(&mut self, message: &RecordedMessage, now_us: u64, room: usize) -> (History, bool) {
        self.forget(message, now_us);
        let news = News::of(self, message);
        let is_kept = news.growth(self, message) <= room;
        if is_kept {
            self.keep(message, &news, now_us);
        }
        let (counts, texts) = self.needed(message, &news, is_kept, now_us);
        (History::new(Duration::from_micros(now_us), counts, texts, self.mute(now_us)), is_kept)
    }

    /// Drops what the rules no longer need.
    fn forget(&mut self, message: &RecordedMessage, now_us: u64) {
        self.messages.forget(now_us, message.needs(Log::Messages));
        self.peers.forget(now_us, message.needs(Log::Peers));
        self.texts.forget(now_us, message.needs(Log::Texts));
    }

    fn keep(&mut self, message: &RecordedMessage, news: &News, now_us: u64) {
        let kept = |log| message.needs(log).1;
        if news.message {
            self.messages.add(now_us, message.id, kept(Log::Messages));
        }
        if let (true, Some(peer)) = (news.peer, &message.peer) {
            self.peers.remove(|known| known == peer);
            self.peers.add(now_us, peer.clone(), kept(Log::Peers));
        }
        if let (true, Some(text)) = (news.text, &message.text) {
            self.texts.add(now_us, (message.id, text.clone()), kept(Log::Texts));
        }
        for (longest_window, kept) in Log::ALL.map(|log| message.needs(log)) {
            if kept > 0 {
                self.logs_over_us = self.logs_over_us.max(now_us + micros(longest_window));
            }
        }
    }

    /// Returns what the rules need: the count of each, the message among them also if it is not kept,
    /// and the other texts if a rule compares them.
    fn needed(
        &self,
        message: &RecordedMessage,
        news: &News,
        is_kept: bool,
        now_us: u64,
    ) -> (Vec<u32>, Vec<(Duration, Arc<str>)>) {
        let stands_us =
            self.active_mute(now_us).map_or(0, |active_mute| active_mute.reason.rule.mute_us());
        let more = |is_new: bool| usize::from(is_new && !is_kept);
        let count = |rule: &Rule| match (Log::of(rule), rule.window_us()) {
            (log, _) if message.needs(log).1 == 0 || rule.mute_us() <= stands_us => 0,
            (Log::Messages, window_us) => {
                self.messages.within(now_us, window_us, |_| true) + more(news.message)
            }
            (Log::Peers, window_us) => {
                let others = |peer: &Key| is_kept || Some(peer) != message.peer.as_ref();
                self.peers.within(now_us, window_us, others) + more(news.peer)
            }
            (Log::Texts, window_us) => {
                self.texts.within(now_us, window_us, |_| true) + more(news.text)
            }
        };
        let rules = message.rules.as_slice();
        let counts: Vec<u32> =
            rules.iter().map(|rule| u32::try_from(count(rule)).unwrap_or(u32::MAX)).collect();
        let is_complete =
            |(rule, count): (&Rule, &u32)| Log::of(rule) == Log::Texts && *count >= rule.count();
        let mut texts = Vec::new();
        if rules.iter().zip(&counts).any(is_complete) {
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
        let until_us = micros(timestamp) + mute_us;
        let active_mute = self.active_mute(now_us);
        let is_longer = active_mute.is_none_or(|active_mute| {
            mute_us > active_mute.reason.rule.mute_us() && until_us > active_mute.until_us
        });
        if until_us > now_us && is_longer {
            let lengthened = active_mute.is_some();
            let until = SystemTime::now() + Duration::from_micros(until_us - now_us);
            self.mute = Some(Box::new(ActiveMute { id, until_us, until, reason, lengthened }));
        }
        self.imposed(id, now_us)
    }

    /// Returns the mute that stands, and whether it does by this message.
    fn imposed(&self, id: Uuid, now_us: u64) -> MuteOutcome {
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

    /// Says until when this is kept as it is: the logs go when nothing in them matters, the mute when
    /// it is over.
    fn kept(&self, now_us: u64) -> Keep {
        let mute_over_us = self.active_mute(now_us).map(|active_mute| active_mute.until_us);
        let logs_over_us = Some(self.logs_over_us).filter(|over_us| *over_us > now_us);
        logs_over_us.or(mute_over_us).map_or(Keep::Not, Keep::Until)
    }
}

impl ExpiringValue for Speech {
    fn heap_bytes(&self) -> usize {
        let logs = self.messages.bytes() + self.peers.bytes() + self.texts.bytes();
        logs + self.mute.as_ref().map_or(0, |_| size_of::<ActiveMute>())
    }

    fn expire(&mut self, now_us: u64) -> Keep {
        let mute = self.mute.take().filter(|active_mute| active_mute.until_us > now_us);
        *self = Self { mute, ..Self::default() };
        self.kept(now_us)
    }
}

/// In which logs a message is new.
struct News {
    message: bool,
    peer: bool,
    text: bool,
}

impl News {
    fn of(speech: &Speech, message: &RecordedMessage) -> Self {
        let needed = |log| message.needs(log).1 > 0;
        Self {
            message: needed(Log::Messages) && !speech.messages.any(|id| *id == message.id),
            // A peer that is known moves.
            peer: needed(Log::Peers),
            text: needed(Log::Texts) && !speech.texts.any(|(id, _)| *id == message.id),
        }
    }

    /// Returns by how many bytes the logs grow at the most if the message is kept.
    fn growth(&self, speech: &Speech, message: &RecordedMessage) -> usize {
        let mut bytes = 0;
        if self.message {
            bytes += speech.messages.growth(&message.id, message.needs(Log::Messages).1);
        }
        if let (true, Some(peer)) = (self.peer, &message.peer)
            && !speech.peers.any(|known| known == peer)
        {
            bytes += speech.peers.growth(peer, message.needs(Log::Peers).1);
        }
        if let (true, Some(text)) = (self.text, &message.text) {
            bytes += speech.texts.growth(&(message.id, text.clone()), message.needs(Log::Texts).1);
        }
        bytes
    }
}

impl MemoryStore {
    /// Sets how many bytes may be taken by what a [`SpeechMonitor`](crate::moderation::SpeechMonitor)
    /// keeps of senders, in this store and all clones of it. Defaults to 256 MiB.
    ///
    /// A sender takes about 230 bytes, and each message 60 bytes and its text, of which at most 500
    /// characters are kept, up to 2,000 bytes. So 256 MiB are room for 800,000 senders with one message
    /// of 20 Chinese characters each, or for 120,000 of the longest messages. A message is kept for the
    /// longest window of the rules. Of one sender at most 64 texts are kept, 135 kB of the longest.
    ///
    /// When the bytes are used up, what is over is dropped first. What is live never is, and a mute is
    /// always imposed and kept. A message that finds no room is judged by what is kept of its sender,
    /// and is not kept itself; unless its sender is muted, the monitor then returns
    /// [`StoreError::TooManyBytes`](crate::StoreError::TooManyBytes).
    ///
    /// ```
    /// use tower_sliding_window::MemoryStore;
    ///
    /// let store = MemoryStore::new().speech_bytes(64 << 20);
    /// assert_eq!(store.speech_bytes_used(), 0);
    /// ```
    #[must_use]
    pub fn speech_bytes(self, bytes: usize) -> Self {
        self.table::<Speech>().set_budget(bytes);
        self
    }

    /// Returns how many bytes what is kept of senders takes, some of which may be over.
    ///
    /// It is the sum of what was asked of the allocator. That takes some more itself, and keeps tables
    /// that have grown.
    #[must_use]
    pub fn speech_bytes_used(&self) -> usize {
        self.table::<Speech>().bytes()
    }
}

impl SpeechStore for MemoryStore {
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        let senders = self.table::<Speech>();
        let recorded = senders.update_within(message.sender.as_bytes(), |speech, now_us, room| {
            (speech.record(message, now_us, room), speech.kept(now_us))
        });
        StoreFuture::ready(recorded.map(|(mut history, is_kept)| {
            history.unkept = (!is_kept).then(|| senders.too_many_bytes());
            history
        }))
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let imposed = self.table::<Speech>().update(request.sender.as_bytes(), |speech, now_us| {
            let imposed = speech.impose(request, now_us);
            (imposed, speech.kept(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn imposed(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let id = request.id;
        let imposed = self.table::<Speech>().update(request.sender.as_bytes(), |speech, now_us| {
            (speech.imposed(id, now_us), speech.kept(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mute = self
            .table::<Speech>()
            .update(sender.as_bytes(), |speech, now_us| (speech.mute(now_us), speech.kept(now_us)));
        StoreFuture::ready(mute)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        StoreFuture::ready(self.table::<Speech>().update(sender.as_bytes(), |_, _| ((), Keep::Not)))
    }
}
