//! [`Message`]: a line of input, `GROUP<TAB>MESSAGE-ID`.

use crate::common::lines::Unread;

/// A message of a group. Both are any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) group: Vec<u8>,
    pub(crate) id: Vec<u8>,
}

impl Message {
    /// Reads a line.
    pub(crate) fn parse(_number: u64, line: &[u8]) -> Result<Self, LineError> {
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
    #[error(transparent)]
    Unread(#[from] Unread),
}
