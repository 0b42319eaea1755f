//! [`Message`]: a line of input, `GROUP<TAB>MESSAGE-ID`.

use std::io::{BufRead, Read};

use tokio::sync::mpsc;

/// The longest line, in bytes.
const LONGEST_LINE: usize = 64 * 1024;
/// How many lines are read ahead.
const AHEAD: usize = 16;

/// A message of a group. Both are any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) group: Vec<u8>,
    pub(crate) id: Vec<u8>,
}

impl Message {
    /// Reads a line, which may still have its line ending.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, LineError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let tab = line.iter().position(|byte| *byte == b'\t').ok_or(LineError::NoTab)?;
        let (group, id) = (line[..tab].to_vec(), line[tab + 1..].to_vec());
        if group.is_empty() {
            return Err(LineError::NoGroup);
        }
        if id.is_empty() {
            return Err(LineError::NoId);
        }
        Ok(Self { group, id })
    }
}

/// A line of input with its number: a message, or what is wrong with it.
pub(crate) type Line = (u64, Result<Message, LineError>);

/// Why a line is no message. What stands in it is not repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("there is no tab: write GROUP<TAB>MESSAGE-ID")]
    NoTab,
    #[error("there is no group before the tab: write GROUP<TAB>MESSAGE-ID")]
    NoGroup,
    #[error("there is no message id after the tab: write GROUP<TAB>MESSAGE-ID")]
    NoId,
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
            let Some(message) = next(&mut input).transpose() else { return };
            let over = matches!(message, Err(LineError::Unreadable(_)));
            if sender.blocking_send((line, message)).is_err() || over {
                return;
            }
        }
    });
    receiver
}

/// Reads the next line, or nothing at the end.
fn next(input: &mut impl BufRead) -> Result<Option<Message>, LineError> {
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
    Message::parse(&bytes).map(Some)
}
