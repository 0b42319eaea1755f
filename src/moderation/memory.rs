//! What senders said, in the memory of this process.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::entries::Entries;
use super::rule::Rule;
use super::rules::Log;
use super::store::{History, Imposed, Imposition, SpeechStore, Utterance};
use super::verdict::{Mute, Reason};
use crate::key::Key;
use crate::store::expiring::{Expiring, Keep, Kept};
use crate::store::{MemoryStore, StoreFuture};

/// What is kept of each sender.
pub(crate) type Senders = Expiring<Speech>;

/// What is kept of one sender.
#[derive(Default)]
pub(crate) struct Speech {
    messages: Entries<Uuid>,
    peers: Entries<Key>,
    texts: Entries<(Uuid, Arc<str>)>,
    /// Until when the logs matter.
    logs_over_us: u64,
    /// Few senders have one.
    mute: Option<Box<Standing>>,
}

struct Standing {
    id: Uuid,
    until_us: u64,
    /// The same on the system's clock, as it was when the mute began.
    until: SystemTime,
    reason: Reason,
    lengthened: bool,
}

impl Speech {
    /// Records a message if it finds room in so many bytes.
    fn record(&mut self, said: &Utterance, now_us: u64, room: usize) -> (History, bool) {
        self.forget(said, now_us);
        let news = News::of(self, said);
        let is_kept = news.growth(self, said) <= room;
        if is_kept {
            self.keep(said, &news, now_us);
        }
        let (counts, texts) = self.needed(said, &news, is_kept, now_us);
        (History::new(now_us, counts, texts, self.mute(now_us)), is_kept)
    }

    /// Drops what the rules no longer need.
    fn forget(&mut self, said: &Utterance, now_us: u64) {
        self.messages.forget(now_us, said.needs(Log::Messages));
        self.peers.forget(now_us, said.needs(Log::Peers));
        self.texts.forget(now_us, said.needs(Log::Texts));
    }

    fn keep(&mut self, said: &Utterance, news: &News, now_us: u64) {
        let kept = |log| said.needs(log).1;
        if news.message {
            self.messages.add(now_us, said.id, kept(Log::Messages));
        }
        if let (true, Some(peer)) = (news.peer, &said.peer) {
            self.peers.remove(|known| known == peer);
            self.peers.add(now_us, peer.clone(), kept(Log::Peers));
        }
        if let (true, Some(text)) = (news.text, &said.text) {
            self.texts.add(now_us, (said.id, text.clone()), kept(Log::Texts));
        }
        for (horizon_us, kept) in Log::ALL.map(|log| said.needs(log)) {
            if kept > 0 {
                self.logs_over_us = self.logs_over_us.max(now_us + horizon_us);
            }
        }
    }

    /// Returns what the rules need: the count of each, the message among them also if it is not kept,
    /// and the other texts if a rule compares them.
    fn needed(
        &self,
        said: &Utterance,
        news: &News,
        is_kept: bool,
        now_us: u64,
    ) -> (Vec<u32>, Vec<(u64, Arc<str>)>) {
        let stands_us = self.standing(now_us).map_or(0, |standing| standing.reason.rule.mute_us());
        let more = |is_new: bool| usize::from(is_new && !is_kept);
        let count = |rule: &Rule| match (Log::of(rule), rule.window_us()) {
            (log, _) if said.needs(log).1 == 0 || rule.mute_us() <= stands_us => 0,
            (Log::Messages, window_us) => {
                self.messages.within(now_us, window_us, |_| true) + more(news.message)
            }
            (Log::Peers, window_us) => {
                let others = |peer: &Key| is_kept || Some(peer) != said.peer.as_ref();
                self.peers.within(now_us, window_us, others) + more(news.peer)
            }
            (Log::Texts, window_us) => {
                self.texts.within(now_us, window_us, |_| true) + more(news.text)
            }
        };
        let rules = said.rules.as_slice();
        let counts: Vec<u32> =
            rules.iter().map(|rule| u32::try_from(count(rule)).unwrap_or(u32::MAX)).collect();
        let is_complete =
            |(rule, count): (&Rule, &u32)| Log::of(rule) == Log::Texts && *count >= rule.count();
        let mut texts = Vec::new();
        if rules.iter().zip(&counts).any(is_complete) {
            let others = self.texts.iter().filter(|(_, (id, _))| *id != said.id);
            texts = others.map(|(at_us, (_, text))| (now_us - at_us, text.clone())).collect();
        }
        (counts, texts)
    }

    fn impose(&mut self, imposition: &Imposition, now_us: u64) -> Imposed {
        let Imposition { id, at_us, reason, .. } = *imposition;
        let mute_us = reason.rule.mute_us();
        let until_us = at_us + mute_us;
        let standing = self.standing(now_us);
        let is_longer = standing.is_none_or(|standing| {
            mute_us > standing.reason.rule.mute_us() && until_us > standing.until_us
        });
        if until_us > now_us && is_longer {
            let lengthened = standing.is_some();
            let until = SystemTime::now() + Duration::from_micros(until_us - now_us);
            self.mute = Some(Box::new(Standing { id, until_us, until, reason, lengthened }));
        }
        self.imposed(id, now_us)
    }

    /// Returns the mute that stands, and whether it does by this message.
    fn imposed(&self, id: Uuid, now_us: u64) -> Imposed {
        let by_this = self.standing(now_us).filter(|standing| standing.id == id);
        let lengthened = by_this.is_some_and(|standing| standing.lengthened);
        Imposed::new(self.mute(now_us), by_this.is_some(), lengthened)
    }

    fn standing(&self, now_us: u64) -> Option<&Standing> {
        self.mute.as_deref().filter(|standing| standing.until_us > now_us)
    }

    fn mute(&self, now_us: u64) -> Option<Mute> {
        let standing = self.standing(now_us)?;
        let remaining = Duration::from_micros(standing.until_us - now_us);
        Some(Mute::new(standing.reason, remaining, standing.until))
    }

    /// Says until when this is kept as it is: the logs go when nothing in them matters, the mute when
    /// it is over.
    fn kept(&self, now_us: u64) -> Keep {
        let mute_over_us = self.standing(now_us).map(|standing| standing.until_us);
        let logs_over_us = Some(self.logs_over_us).filter(|over_us| *over_us > now_us);
        logs_over_us.or(mute_over_us).map_or(Keep::Not, Keep::Until)
    }
}

impl Kept for Speech {
    fn heap_bytes(&self) -> usize {
        let logs = self.messages.bytes() + self.peers.bytes() + self.texts.bytes();
        logs + self.mute.as_ref().map_or(0, |_| size_of::<Standing>())
    }

    fn expire(&mut self, now_us: u64) -> Keep {
        let mute = self.mute.take().filter(|standing| standing.until_us > now_us);
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
    fn of(speech: &Speech, said: &Utterance) -> Self {
        let needed = |log| said.needs(log).1 > 0;
        Self {
            message: needed(Log::Messages) && !speech.messages.any(|id| *id == said.id),
            // A peer that is known moves.
            peer: needed(Log::Peers),
            text: needed(Log::Texts) && !speech.texts.any(|(id, _)| *id == said.id),
        }
    }

    /// Returns by how many bytes the logs grow at the most if the message is kept.
    fn growth(&self, speech: &Speech, said: &Utterance) -> usize {
        let mut bytes = 0;
        if self.message {
            bytes += speech.messages.growth(&said.id, said.needs(Log::Messages).1);
        }
        if let (true, Some(peer)) = (self.peer, &said.peer)
            && !speech.peers.any(|known| known == peer)
        {
            bytes += speech.peers.growth(peer, said.needs(Log::Peers).1);
        }
        if let (true, Some(text)) = (self.text, &said.text) {
            bytes += speech.texts.growth(&(said.id, text.clone()), said.needs(Log::Texts).1);
        }
        bytes
    }
}

impl SpeechStore for MemoryStore {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        let senders = self.senders();
        let recorded = senders.update_within(said.sender.as_bytes(), |speech, now_us, room| {
            (speech.record(said, now_us, room), speech.kept(now_us))
        });
        StoreFuture::ready(recorded.map(|(mut history, is_kept)| {
            history.unkept = (!is_kept).then(|| senders.too_many_bytes());
            history
        }))
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let imposed = self.senders().update(imposition.sender.as_bytes(), |speech, now_us| {
            let imposed = speech.impose(imposition, now_us);
            (imposed, speech.kept(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn imposed(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let id = imposition.id;
        let imposed = self.senders().update(imposition.sender.as_bytes(), |speech, now_us| {
            (speech.imposed(id, now_us), speech.kept(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mute = self
            .senders()
            .update(sender.as_bytes(), |speech, now_us| (speech.mute(now_us), speech.kept(now_us)));
        StoreFuture::ready(mute)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        StoreFuture::ready(self.senders().update(sender.as_bytes(), |_, _| ((), Keep::Not)))
    }
}
