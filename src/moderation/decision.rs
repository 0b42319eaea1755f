//! [`SpeechDecision`]: whether to deliver a message. [`Mute`]: why it is not delivered.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::rule::{Counted, Rule};
use crate::key::Key;
use crate::quota::Span;

/// Whether to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a message of a muted sender must not be delivered"]
pub enum SpeechDecision {
    /// The message is to be delivered.
    Delivered,
    /// The sender is muted, by this message or an earlier one. Show the message to its sender as usual,
    /// and to no one else.
    Muted(Mute),
}

impl SpeechDecision {
    /// Returns whether the message is to be delivered.
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

/// An active mute of a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mute {
    reason: Reason,
    remaining: Duration,
    until: SystemTime,
}

impl Mute {
    /// Creates a mute. For authors of stores.
    #[must_use]
    pub const fn new(reason: Reason, remaining: Duration, until: SystemTime) -> Self {
        Self { reason, remaining, until }
    }

    /// Returns the rule that was triggered. A manual mute has one that counts
    /// [nothing](Counted::Manual).
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.reason.rule
    }

    /// Returns whether the mute was imposed by
    /// [`SpeechMonitor::mute`](super::SpeechMonitor::mute), and not by a rule.
    #[must_use]
    pub const fn is_manual(&self) -> bool {
        self.reason.is_manual()
    }

    /// Returns what triggered the rule.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns how long the mute still lasts, as of the store's reply.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns the end of the mute, by the clock of Redis, or by the system clock for an in-process
    /// store. For display only: the store decides by its own clock.
    #[must_use]
    pub const fn until(&self) -> SystemTime {
        self.until
    }
}

/// What triggered a rule.
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
    /// Creates a reason. For authors of stores.
    #[must_use]
    pub const fn new(rule: Rule, count: u32, percent: u8) -> Self {
        Self { rule, count, percent }
    }

    pub(super) const fn is_manual(&self) -> bool {
        matches!(self.rule.counted(), Counted::Manual)
    }

    /// Returns how many messages, peers or senders were in the rule's window: at least the rule's count, or 0
    /// for a manual mute.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the similarity rate of these messages in percent, or 0 if the rule does not compare
    /// messages.
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
            Counted::Campaign => write!(f, "{count} senders of one text within {window}"),
            Counted::Manual => f.write_str("a manual mute"),
            Counted::Similar { .. } => {
                write!(f, "{count} messages within {window} at {}% similarity", self.percent)
            }
        }
    }
}

/// A mute for the audit log, reported when it is imposed and each time it is lengthened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MuteEvent {
    /// The muted sender. This is personal data: take care where you write it.
    pub sender: Key,
    /// The mute.
    pub mute: Mute,
    /// Whether this mute has replaced a mute that would have ended earlier.
    pub lengthened: bool,
}
