//! [`Message`]: what somebody says to somebody.

use std::fmt;

use super::similarity::normalised;
use crate::key::Key;

/// A message as the monitor sees it: from whom, in a private chat to whom, and what it says.
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
    pub(super) text: Option<String>,
}

impl Message {
    /// Creates a message of a sender, in no private chat and without a text.
    #[must_use]
    pub fn from(sender: impl Into<Key>) -> Self {
        Self { sender: sender.into(), peer: None, text: None }
    }

    /// Sets the peer of the private chat that it is sent in. Defaults to none, as in a room.
    #[must_use]
    pub fn to(mut self, peer: impl Into<Key>) -> Self {
        self.peer = Some(peer.into());
        self
    }

    /// Sets what it says. Defaults to nothing that could be compared, as with a picture.
    ///
    /// The text is [`normalised`] here, and nothing else of it is kept.
    #[must_use]
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        self.text = Some(normalised(text.as_ref()));
        self
    }
}

impl fmt::Debug for Message {
    /// Says neither whose message it is nor what it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("private", &self.peer.is_some())
            .field("has_text", &self.text.is_some())
            .finish_non_exhaustive()
    }
}
