//! [`Message`]: what the monitor checks.

use std::fmt;

use super::fingerprint::Fingerprint;
use crate::key::Key;

/// A chat message to check: its sender, the peer if it is private, and its text.
///
/// ```
/// use tower_sliding_window::moderation::Message;
///
/// let in_a_room = Message::from("alice").text("hello, all");
/// let in_private = Message::from("alice").to("bob").text("hello, you");
/// let a_picture = Message::from("alice").to("bob");
/// assert_eq!(format!("{in_private:?}"), "Message { private: true, has_text: true, .. }");
/// ```
#[derive(Clone)]
pub struct Message {
    pub(super) sender: Key,
    pub(super) peer: Option<Key>,
    pub(super) text: Option<Fingerprint>,
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
    /// Only its [fingerprint](super::store::Fingerprint) is kept.
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
