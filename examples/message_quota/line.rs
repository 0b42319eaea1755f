//! [`Message`]: a line of input, `RECEIVER<TAB>TEXT`.

use std::io::{BufRead, Read};
use std::str::Utf8Error;

use tokio::sync::mpsc;

/// The longest line, in bytes.
const LONGEST_LINE: usize = 64 * 1024;
/// How many lines are read ahead.
const AHEAD: usize = 16;

/// A text, and who is to receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The number of its line, counted from 1.
    pub(crate) line: u64,
    pub(crate) receiver: String,
    pub(crate) text: String,
}

impl Message {
    /// Reads a line, which may still have its line ending.
    pub(crate) fn parse(line: u64, bytes: &[u8]) -> Result<Self, LineError> {
        let text = std::str::from_utf8(bytes).map_err(LineError::NotUtf8)?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
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
    #[error("it is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("the input can't be read any further: {0}")]
    Unreadable(std::io::Error),
}

/// Reads lines from a thread of its own, which does not keep the process from ending.
///
/// tokio's stdin would: a program that has been asked to stop would wait for one more line.
pub(crate) fn lines(mut input: impl BufRead + Send + 'static) -> mpsc::Receiver<Line> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in 1.. {
            let Some(message) = next(&mut input, line).transpose() else { return };
            let over = matches!(message, Err(LineError::Unreadable(_)));
            if sender.blocking_send((line, message)).is_err() || over {
                return;
            }
        }
    });
    receiver
}

/// Reads the next line, or nothing at the end.
fn next(input: &mut impl BufRead, line: u64) -> Result<Option<Message>, LineError> {
    let mut bytes = Vec::new();
    // Room for the line ending.
    let most = LONGEST_LINE as u64 + 2;
    input.take(most).read_until(b'\n', &mut bytes).map_err(LineError::Unreadable)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == most && !bytes.ends_with(b"\n") {
        input.skip_until(b'\n').map_err(LineError::Unreadable)?;
        return Err(LineError::TooLong);
    }
    Message::parse(line, &bytes).map(Some)
}
