//! What senders said, in the memory of this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::rule::Rule;
use super::rules::Log;
use super::store::{History, Imposed, Imposition, SpeechStore, Utterance};
use super::verdict::{Mute, Reason};
use crate::key::Key;
use crate::store::expiring::{Expiring, Keep};
use crate::store::{MemoryStore, StoreFuture};

/// What is kept of each sender.
pub(crate) type Senders = Expiring<Speech>;

/// What is kept of one sender.
#[derive(Default)]
pub(crate) struct Speech {
    messages: Entries<Uuid>,
    peers: Entries<Key>,
    texts: Entries<(Uuid, Arc<str>)>,
    mute: Option<Standing>,
    /// Until when something of it matters.
    over_us: u64,
}

/// Entries with their stamps, oldest first.
struct Entries<T>(VecDeque<(u64, T)>);

struct Standing {
    id: Uuid,
    until_us: u64,
    /// The same on the system's clock, as it was when the mute began.
    until: SystemTime,
    reason: Reason,
    lengthened: bool,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Entries<T> {
    /// Adds an entry, and drops what is older or more than is needed.
    fn add(&mut self, now_us: u64, entry: T, (horizon_us, kept): (u64, u32)) {
        if kept == 0 {
            return;
        }
        self.0.push_back((now_us, entry));
        while self.0.len() > kept as usize
            || self.0.front().is_some_and(|(at_us, _)| now_us - at_us >= horizon_us)
        {
            self.0.pop_front();
        }
    }

    fn within(&self, now_us: u64, window_us: u64) -> usize {
        self.0.iter().rev().take_while(|(at_us, _)| now_us - at_us < window_us).count()
    }
}

impl Speech {
    fn record(&mut self, said: &Utterance, now_us: u64) -> History {
        let needs = |log| said.needs(log);
        if !self.messages.0.iter().any(|(_, id)| *id == said.id) {
            self.messages.add(now_us, said.id, needs(Log::Messages));
        }
        if let Some(peer) = &said.peer
            && needs(Log::Peers).1 > 0
        {
            self.peers.0.retain(|(_, known)| known != peer);
            self.peers.add(now_us, peer.clone(), needs(Log::Peers));
        }
        if let Some(text) = &said.text
            && !self.texts.0.iter().any(|(_, (id, _))| *id == said.id)
        {
            self.texts.add(now_us, (said.id, text.clone()), needs(Log::Texts));
        }
        for log in Log::ALL {
            let (horizon_us, kept) = needs(log);
            if kept > 0 {
                self.over_us = self.over_us.max(now_us + horizon_us);
            }
        }
        let stands_us = self.standing(now_us).map_or(0, |standing| standing.reason.rule.mute_us());
        let count = |rule: &Rule| match Log::of(rule) {
            log if needs(log).1 == 0 || rule.mute_us() <= stands_us => 0,
            Log::Messages => self.messages.within(now_us, rule.window_us()),
            Log::Peers => self.peers.within(now_us, rule.window_us()),
            Log::Texts => self.texts.within(now_us, rule.window_us()),
        };
        let rules = said.rules.as_slice();
        let counts: Vec<u32> =
            rules.iter().map(|rule| u32::try_from(count(rule)).unwrap_or(u32::MAX)).collect();
        let compared = rules
            .iter()
            .zip(&counts)
            .any(|(rule, count)| Log::of(rule) == Log::Texts && *count >= rule.count());
        let mut texts = Vec::new();
        if compared {
            let others = self.texts.0.iter().filter(|(_, (id, _))| *id != said.id);
            texts = others.map(|(at_us, (_, text))| (now_us - at_us, text.clone())).collect();
        }
        History::new(now_us, counts, texts, self.mute(now_us))
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
            self.mute = Some(Standing { id, until_us, until, reason, lengthened });
            self.over_us = self.over_us.max(until_us);
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
        self.mute.as_ref().filter(|standing| standing.until_us > now_us)
    }

    fn mute(&self, now_us: u64) -> Option<Mute> {
        let standing = self.standing(now_us)?;
        let remaining = Duration::from_micros(standing.until_us - now_us);
        Some(Mute::new(standing.reason, remaining, standing.until))
    }

    fn keep(&self, now_us: u64) -> Keep {
        if self.over_us > now_us { Keep::Until(self.over_us) } else { Keep::Not }
    }
}

impl crate::store::expiring::Kept for Speech {}

impl SpeechStore for MemoryStore {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        let history = self.senders().update(said.sender.as_bytes(), |speech, now_us| {
            let history = speech.record(said, now_us);
            (history, speech.keep(now_us))
        });
        StoreFuture::ready(history)
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let imposed = self.senders().update(imposition.sender.as_bytes(), |speech, now_us| {
            let imposed = speech.impose(imposition, now_us);
            (imposed, speech.keep(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn imposed(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let id = imposition.id;
        let imposed = self.senders().update(imposition.sender.as_bytes(), |speech, now_us| {
            (speech.imposed(id, now_us), speech.keep(now_us))
        });
        StoreFuture::ready(imposed)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mute = self
            .senders()
            .update(sender.as_bytes(), |speech, now_us| (speech.mute(now_us), speech.keep(now_us)));
        StoreFuture::ready(mute)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        StoreFuture::ready(self.senders().update(sender.as_bytes(), |_, _| ((), Keep::Not)))
    }
}
