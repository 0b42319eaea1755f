//! [`SpeechStore`]: stores the messages of senders, and their mutes.
//!
//! Applications give a [`MemoryStore`](crate::MemoryStore) or a `RedisStore` to a
//! [`SpeechMonitor`](super::SpeechMonitor). Only authors of other stores need this module.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::decision::{Mute, Reason};
pub use super::fingerprint::Fingerprint;
use super::rule::{Counted, MAX_TEXTS, Rule};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::StoreFuture;

/// A store that keeps the messages of senders as long as the rules need them, and their mutes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of messages",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait SpeechStore: Send + Sync + 'static {
    /// Records a message and returns what the rules need to decide on it, as one atomic step.
    ///
    /// A message whose id is already recorded is not recorded again.
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History>;

    /// Mutes a sender, unless there is an active mute that is as long or ends as late, as one atomic
    /// step.
    ///
    /// A [manual](MuteRequest::is_manual) mute begins when the store gets the request, and replaces any
    /// active mute that ends earlier. A repeated request, with the same id, changes nothing.
    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome>;

    /// Returns the outcome of a request whose reply was lost. Imposes no mute.
    fn mute_outcome(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome>;

    /// Returns the active mute of a sender.
    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>>;

    /// Deletes the messages and the mute of a sender.
    fn forget(&self, sender: &Key) -> StoreFuture<()>;

    /// Returns about `count` senders that have a mute or had one a moment ago, and the position of the
    /// next page if there may be more. The first page begins at 0.
    ///
    /// Defaults to [`StoreError::Unsupported`].
    fn muted_senders(&self, _position: u64, _count: usize) -> StoreFuture<(Vec<Key>, Option<u64>)> {
        StoreFuture::ready(Err(StoreError::Unsupported { what: "listing mutes" }))
    }
}

impl<S: SpeechStore + ?Sized> SpeechStore for Arc<S> {
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        (**self).record(message)
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        (**self).mute(request)
    }

    fn mute_outcome(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        (**self).mute_outcome(request)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        (**self).mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        (**self).forget(sender)
    }

    fn muted_senders(&self, position: u64, count: usize) -> StoreFuture<(Vec<Key>, Option<u64>)> {
        (**self).muted_senders(position, count)
    }
}

/// A message to record.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedMessage {
    /// The id of the message. A message is recorded once under its id.
    pub id: Uuid,
    /// The sender of the message.
    pub sender: Key,
    /// The peer, if the message is private.
    pub peer: Option<Key>,
    /// The fingerprint of the text, if it has one to compare.
    pub text: Option<Fingerprint>,
    /// The rules to decide by.
    pub rules: Arc<Rules>,
}

impl RecordedMessage {
    /// Returns the retention of a log, see [`Rules::retention`]. Both values are zero if the message
    /// adds no entry to the log.
    #[must_use]
    pub fn retention(&self, log: Log) -> (Duration, u32) {
        match log {
            Log::Peers if self.peer.is_none() => (Duration::ZERO, 0),
            Log::Texts if self.text.is_none() => (Duration::ZERO, 0),
            log => self.rules.retention(log),
        }
    }
}

/// The rules of a monitor, the longest mute first.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One of the three logs that a store keeps of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Log {
    /// The timestamps of messages, for rules that count [`Counted::Events`].
    Messages,
    /// The private-chat peers, each with the timestamp of the last message to it.
    Peers,
    /// The fingerprints of texts, with their timestamps.
    Texts,
}

impl Log {
    /// All logs, in the order of their numbers in the scripts.
    pub const ALL: [Self; 3] = [Self::Messages, Self::Peers, Self::Texts];

    /// Returns the log that a rule counts in.
    #[must_use]
    pub const fn of(rule: &Rule) -> Self {
        match rule.counted() {
            // A manual mute counts nothing, and is no rule of a monitor.
            Counted::Events | Counted::Manual => Self::Messages,
            // The senders of a text are recorded as if the text had written to them.
            Counted::DistinctPeers | Counted::Campaign => Self::Peers,
            Counted::Similar { .. } => Self::Texts,
        }
    }
}

impl Rules {
    pub(super) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let is_manual = |rule: &Rule| rule.counted() == Counted::Manual;
        let mut rules: Vec<Rule> = rules.into_iter().filter(|rule| !is_manual(rule)).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.mute()));
        Self { rules }
    }

    /// Returns the rules, the longest mute first.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns how long a text must be for any rule to compare it.
    pub(super) fn min_length(&self) -> u16 {
        let compares = |rule: &&Rule| rule.default_min_length() > 0;
        self.rules.iter().filter(compares).map(Rule::get_min_length).min().unwrap_or(0)
    }

    /// Returns the retention of a log: how long its entries are needed, and how many of the newest.
    /// Both are zero if no rule counts in the log.
    #[must_use]
    pub fn retention(&self, log: Log) -> (Duration, u32) {
        let rules = || self.rules.iter().filter(|rule| Log::of(rule) == log);
        let longest_window = rules().map(Rule::window).max().unwrap_or_default();
        let max_entries = match log {
            Log::Texts if !longest_window.is_zero() => MAX_TEXTS,
            // A rule triggers if the count-th newest entry is in its window. Older ones don't matter.
            _ => rules().map(Rule::count).max().unwrap_or(0),
        };
        (longest_window, max_entries)
    }
}

/// What a store has recorded of a sender, returned for a [`RecordedMessage`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct History {
    /// When the message was recorded, by the store's clock, since its epoch.
    pub timestamp: Duration,
    /// For each rule, how many entries are in its window, including the message. It may be 0 for a
    /// rule whose mute is not longer than the active one.
    pub counts: Vec<u32>,
    /// The ages and the fingerprints of the sender's other messages. It may be empty if no rule about similar
    /// messages has reached its count.
    pub texts: Vec<(Duration, Fingerprint)>,
    /// The sender's active mute.
    pub mute: Option<Mute>,
    /// The error if the store had no room to record the message. The counts include the message
    /// anyway, so a rule may trigger. If the sender is not muted, the monitor returns this error.
    pub not_recorded: Option<StoreError>,
}

impl History {
    /// Creates the history of a message that was recorded.
    #[must_use]
    pub fn new(
        timestamp: Duration,
        counts: Vec<u32>,
        texts: Vec<(Duration, Fingerprint)>,
        mute: Option<Mute>,
    ) -> Self {
        Self { timestamp, counts, texts, mute, not_recorded: None }
    }
}

/// A request to mute a sender.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteRequest {
    /// The id of the message that triggered the rule, or a new one for a manual mute.
    pub id: Uuid,
    /// When the message was recorded, by the store's clock. The mute begins then. Zero for a manual
    /// mute.
    pub timestamp: Duration,
    /// The sender to mute.
    pub sender: Key,
    /// The rule, which sets the length of the mute, and what triggered it.
    pub reason: Reason,
    /// How long the first mutes of a sender last at most, see
    /// [`SpeechMonitor::first_mutes`](super::SpeechMonitor::first_mutes). Empty for a manual mute.
    pub first_mutes: Arc<[Duration]>,
}

impl MuteRequest {
    /// Returns whether the mute is requested by [`SpeechMonitor::mute`](super::SpeechMonitor::mute),
    /// and begins now.
    #[must_use]
    pub const fn is_manual(&self) -> bool {
        self.reason.is_manual()
    }

    /// Returns how long the mute lasts if it is the `nth` of the sender in a row.
    pub(super) fn length_of(&self, nth: usize) -> Duration {
        let length = self.reason.rule.mute();
        let at_most = self.first_mutes.get(nth.wrapping_sub(1));
        at_most.map_or(length, |at_most| length.min(*at_most))
    }
}

/// For how long after its end a mute counts in [`MuteRequest::first_mutes`].
pub(super) const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// The outcome of a [`MuteRequest`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteOutcome {
    /// The active mute. `None` if the requested mute would be over already.
    pub mute: Option<Mute>,
    /// Whether the message of the request has caused the active mute.
    pub by_this: bool,
    /// Whether the active mute has replaced a mute that would have ended earlier. False if another
    /// message has caused it.
    pub lengthened: bool,
}

impl MuteOutcome {
    /// Creates an outcome.
    #[must_use]
    pub fn new(mute: Option<Mute>, by_this: bool, lengthened: bool) -> Self {
        Self { mute, by_this, lengthened }
    }
}
