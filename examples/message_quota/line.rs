//! [`Message`]: a line of input, `RECEIVER<TAB>TEXT`.

use std::str::Utf8Error;

use crate::common::lines::Unread;

/// A text, and who is to receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The number of its line, counted from 1.
    pub(crate) line: u64,
    pub(crate) receiver: String,
    pub(crate) text: String,
}

impl Message {
    /// Reads a line.
    pub(crate) fn parse(line: u64, bytes: &[u8]) -> Result<Self, LineError> {
        let text = std::str::from_utf8(bytes).map_err(LineError::NotUtf8)?;
        let (receiver, text) = text.split_once('\t').ok_or(LineError::NoTab)?;
        if receiver.is_empty() {
            return Err(LineError::NoReceiver);
        }
        Ok(Self { line, receiver: receiver.to_owned(), text: text.to_owned() })
    }
}

/// A line of input: a message, or what is wrong with it.
pub(crate) type Line = (u64, Result<Message, LineError>);

/// Why a line is no message. What stands in it is not repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("there is no tab: write RECEIVER<TAB>TEXT")]
    NoTab,
    #[error("there is no receiver before the tab: write RECEIVER<TAB>TEXT")]
    NoReceiver,
    #[error("it is not UTF-8: {0}")]
    NotUtf8(Utf8Error),
    #[error(transparent)]
    Unread(#[from] Unread),
}
