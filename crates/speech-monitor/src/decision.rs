//! [`Message`]: what the monitor checks, and [`SpeechDecision`] and [`Mute`]: what it says.

use std::fmt;
use std::time::Duration;

use tower_sliding_window::{Ban, Key};
use uuid::Uuid;

use crate::fingerprint::Fingerprint;
use crate::rule::{Counted, Rule, span};

/// The reason of a mute that an operator has imposed.
pub(crate) const MANUAL: &str = "a manual mute";

/// A chat message to check: its sender, the peer if it is private, and its text.
///
/// ```
/// use speech_monitor::Message;
///
/// let in_a_room = Message::from("alice").text("hello, all");
/// let in_private = Message::from("alice").to("bob").text("hello, you");
/// let a_picture = Message::from("alice").to("bob");
/// assert_eq!(format!("{in_private:?}"), "Message { private: true, has_text: true, .. }");
/// ```
#[derive(Clone)]
pub struct Message {
    pub(crate) sender: Key,
    pub(crate) peer: Option<Key>,
    pub(crate) text: Option<Fingerprint>,
}

impl Message {
    /// Creates a message from a sender, not private and without a text.
    #[must_use]
    pub fn from(sender: impl Into<Key>) -> Self {
        Self { sender: sender.into(), peer: None, text: None }
    }

    /// Sets the peer of a private chat. Defaults to none, as for a message to a room.
    #[must_use]
    pub fn to(mut self, peer: impl Into<Key>) -> Self {
        self.peer = Some(peer.into());
        self
    }

    /// Sets the text. Defaults to none, as for a picture; such a message is not compared.
    ///
    /// Only a fingerprint of it is kept.
    #[must_use]
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        self.text = Some(Fingerprint::of(text.as_ref()));
        self
    }
}

impl fmt::Debug for Message {
    /// Shows neither the sender nor the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("private", &self.peer.is_some())
            .field("has_text", &self.text.is_some())
            .finish_non_exhaustive()
    }
}

/// Whether to deliver a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message of a muted sender must not be delivered"]
pub enum SpeechDecision {
    /// The message is to be delivered.
    Delivered,
    /// The sender is muted, by this message or an earlier one. Show the message to its sender as usual,
    /// and to no one else.
    Muted {
        /// How long the mute still lasts.
        remaining: Duration,
    },
}

impl SpeechDecision {
    /// Returns whether the message is to be delivered.
    #[must_use]
    pub const fn is_delivered(&self) -> bool {
        matches!(self, Self::Delivered)
    }
}

/// A mute that stands: a ban of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mute {
    /// Why the sender is muted: the rule and what triggered it, such as
    /// `similar 3/60s 90% mute 6h: 3 messages within 60s at 100% similarity`, or `a manual mute`.
    pub reason: String,
    /// How long the mute still lasts.
    pub remaining: Duration,
}

impl Mute {
    pub(crate) fn of(ban: &Ban) -> Self {
        // Without the identity of the message.
        let reason = ban.reason.rsplit_once(" by ").map_or(&*ban.reason, |(reason, _)| reason);
        let reason = reason.to_owned();
        Self { reason, remaining: ban.remaining }
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

/// Returns the reason of a mute by a rule, with the identity of the message that triggered it.
pub(crate) fn reason(rule: &Rule, count: u32, percent: u8, id: Uuid) -> String {
    let window = span(rule.window());
    let what = match rule.counted {
        Counted::Events => format!("messages within {window}"),
        Counted::Peers => format!("private-chat peers within {window}"),
        Counted::Similar { .. } => format!("messages within {window} at {percent}% similarity"),
    };
    format!("{rule}: {count} {what} by {id}")
}
