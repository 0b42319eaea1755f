//! [`SpeechStore`]: where what senders said, and their mutes, are kept.
//!
//! Applications hand a [`MemoryStore`](crate::MemoryStore) or a `RedisStore` to a
//! [`SpeechMonitor`](super::SpeechMonitor); only who writes a store needs this.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::decision::{Mute, Reason};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::StoreFuture;

pub use super::rules::{Log, Rules};

/// Keeps what senders said for as long as the rules look back, and their mutes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of messages",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait SpeechStore: Send + Sync + 'static {
    /// Records a message, and returns what the rules need to judge it, as one atomic step.
    ///
    /// A message with an identity that is recorded already is not recorded again.
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History>;

    /// Mutes a sender, unless a mute stands that is as long or ends as late, as one atomic step.
    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome>;

    /// Returns what has become of an request whose reply was lost, and imposes nothing.
    fn imposed(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome>;

    /// Returns the mute of a sender that stands.
    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>>;

    /// Forgets all that is kept of a sender: what they said, and their mute.
    fn forget(&self, sender: &Key) -> StoreFuture<()>;
}

impl<S: SpeechStore + ?Sized> SpeechStore for Arc<S> {
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        (**self).record(message)
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        (**self).mute(request)
    }

    fn imposed(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        (**self).imposed(request)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        (**self).mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        (**self).forget(sender)
    }
}

/// A message as it is recorded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedMessage {
    /// The message's identity, under which it is recorded once.
    pub id: Uuid,
    /// Whose message it is.
    pub sender: Key,
    /// To whom, in a private chat.
    pub peer: Option<Key>,
    /// What it says, normalised, if that is to be compared.
    pub text: Option<Arc<str>>,
    /// What is asked about.
    pub rules: Arc<Rules>,
}

impl RecordedMessage {
    /// Returns how far back a log is needed for this message, and how many of its newest entries.
    /// None are if the message has no place in it.
    #[must_use]
    pub fn needs(&self, log: Log) -> (Duration, u32) {
        match log {
            Log::Peers if self.peer.is_none() => (Duration::ZERO, 0),
            Log::Texts if self.text.is_none() => (Duration::ZERO, 0),
            log => self.rules.needs(log),
        }
    }
}

/// What a store has recorded of the sender of a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct History {
    /// When the message was recorded, on the store's clock, since its epoch.
    pub timestamp: Duration,
    /// For each rule, how many its window holds, the message among them. It may be 0 for a rule
    /// whose mute is not longer than the one that stands.
    pub counts: Vec<u32>,
    /// The ages and the texts of the sender's other messages. It may be empty if no rule about
    /// similar messages has its count.
    pub texts: Vec<(Duration, Arc<str>)>,
    /// The sender's mute that stands.
    pub mute: Option<Mute>,
    /// Why the store has not kept the message, if it has not. It is judged all the same, by what the
    /// store has kept before: the counts hold it. Unless the sender is muted then, the caller of the
    /// monitor gets this error.
    pub unkept: Option<StoreError>,
}

impl History {
    /// Creates an answer about a message that is kept.
    #[must_use]
    pub fn new(
        timestamp: Duration,
        counts: Vec<u32>,
        texts: Vec<(Duration, Arc<str>)>,
        mute: Option<Mute>,
    ) -> Self {
        Self { timestamp, counts, texts, mute, unkept: None }
    }
}

/// A mute that is to be imposed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteRequest {
    /// The identity of the message that completed the rule.
    pub id: Uuid,
    /// When it was recorded, on the store's clock: the mute counts from then.
    pub timestamp: Duration,
    /// Who is to be muted.
    pub sender: Key,
    /// The rule, which says for how long, and what completed it.
    pub reason: Reason,
}

/// What has become of an [`MuteRequest`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteOutcome {
    /// The mute that stands now. None if that to be imposed would be over already.
    pub mute: Option<Mute>,
    /// Whether it stands by the message that was named.
    pub by_this: bool,
    /// Whether it has replaced one that ended earlier.
    pub lengthened: bool,
}

impl MuteOutcome {
    /// Creates an answer.
    #[must_use]
    pub fn new(mute: Option<Mute>, by_this: bool, lengthened: bool) -> Self {
        Self { mute, by_this, lengthened }
    }
}
