//! [`SpeechDecision`]: what becomes of a message, and the [`Mute`] that keeps it from being delivered.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::rule::{Counted, Rule};
use crate::key::Key;
use crate::quota::Span;

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a message of a muted sender is not to be delivered"]
pub enum SpeechDecision {
    /// It is delivered.
    Delivered,
    /// Its sender is muted, by this message or an earlier one: nobody else is to see it, and the
    /// sender is to see no difference.
    Muted(Mute),
}

impl SpeechDecision {
    /// Tells whether the message is to be delivered.
    #[must_use]
    pub const fn is_delivered(&self) -> bool {
        matches!(self, Self::Delivered)
    }

    /// Returns the sender's mute, if there is one.
    #[must_use]
    pub const fn mute(&self) -> Option<&Mute> {
        match self {
            Self::Delivered => None,
            Self::Muted(mute) => Some(mute),
        }
    }
}

/// A mute that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mute {
    reason: Reason,
    remaining: Duration,
    until: SystemTime,
}

impl Mute {
    /// Creates a mute; for who writes a store.
    #[must_use]
    pub const fn new(reason: Reason, remaining: Duration, until: SystemTime) -> Self {
        Self { reason, remaining, until }
    }

    /// Returns the rule that was completed.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.reason.rule
    }

    /// Returns what completed the rule.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns how long the mute still lasted when the store answered.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns when the mute ends, on the clock of Redis, or on the system's for a store in this
    /// process. For people to read: what is decided is decided by the store.
    #[must_use]
    pub const fn until(&self) -> SystemTime {
        self.until
    }
}

/// What completed a rule.
///
/// ```
/// use tower_sliding_window::moderation::{Reason, Rule};
///
/// let [similar, _, peers, _] = Rule::recommended();
/// assert_eq!(Reason::new(peers, 5, 0).to_string(), "5 private-chat peers within 180s");
/// assert_eq!(
///     Reason::new(similar, 6, 93).to_string(),
///     "6 messages within 300s at 93% similarity"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    pub(super) rule: Rule,
    pub(super) count: u32,
    pub(super) percent: u8,
}

impl Reason {
    /// Creates a reason; for who writes a store.
    #[must_use]
    pub const fn new(rule: Rule, count: u32, percent: u8) -> Self {
        Self { rule, count, percent }
    }

    /// Returns how many were found in the rule's window: at least its count.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the similarity rate of the messages that were found, in percent; 0 if the rule does
    /// not compare messages.
    #[must_use]
    pub const fn percent(&self) -> u8 {
        self.percent
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, window) = (self.count, Span(self.rule.window_us()));
        match self.rule.counted() {
            Counted::Events => write!(f, "{count} messages within {window}"),
            Counted::DistinctPeers => write!(f, "{count} private-chat peers within {window}"),
            Counted::Similar { .. } => {
                write!(f, "{count} messages within {window} at {}% similarity", self.percent)
            }
        }
    }
}

/// That a sender was muted, for the audit; once for each mute, and once for each time that it
/// became longer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteEvent {
    /// Who was muted. It names a person: mind where it is written.
    pub sender: Key,
    /// The mute.
    pub mute: Mute,
    /// Whether a mute stood already, which ended earlier.
    pub lengthened: bool,
}
