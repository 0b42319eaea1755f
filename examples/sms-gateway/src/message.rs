//! [`Message`]: what is to be sent, read from the body of a request.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use tower_sliding_window::Key;

use crate::name::{Name, NameError};

/// The longest text, in characters: ten parts of a long SMS.
const LONGEST_TEXT: usize = 1600;

/// A message on its way to a receiver.
pub(crate) struct Message {
    pub(crate) institution: Name,
    pub(crate) channel: Name,
    pub(crate) to: Number,
    pub(crate) text: String,
}

/// A telephone number in the form of ITU-T E.164: `+`, then 7 to 15 digits, the first not 0.
///
/// One spelling only: a receiver with two would have two windows.
pub(crate) struct Number(String);

impl Number {
    fn new(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('+')?;
        let all = digits.bytes().all(|byte| byte.is_ascii_digit());
        let fits = (7..=15).contains(&digits.len()) && !digits.starts_with('0');
        (all && fits).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&Number> for Key {
    fn from(number: &Number) -> Self {
        Self::from(number.0.as_str())
    }
}

/// The members as they come, so that what is wrong with one can be said by its name.
#[derive(Deserialize)]
struct Members {
    institution: Option<Value>,
    channel: Option<Value>,
    to: Option<Value>,
    text: Option<Value>,
}

impl Message {
    /// Reads a message from JSON.
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, MessageError> {
        let members: Members = serde_json::from_slice(body).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            match error.classify() {
                Category::Data => MessageError::NoObject,
                _ => MessageError::NoJson { line, column },
            }
        })?;
        let name = |member, value| {
            text_of(member, value)?.parse().map_err(|source| MessageError::Name { member, source })
        };
        let institution = name("institution", members.institution)?;
        let channel = name("channel", members.channel)?;
        let to = Number::new(&text_of("to", members.to)?).ok_or(MessageError::Number)?;
        let text = text_of("text", members.text)?;
        if !(1..=LONGEST_TEXT).contains(&text.chars().count()) {
            return Err(MessageError::Length);
        }
        Ok(Self { institution, channel, to, text })
    }
}

fn text_of(member: &'static str, value: Option<Value>) -> Result<String, MessageError> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(MessageError::NoText { member }),
        None => Err(MessageError::Missing { member }),
    }
}

/// What is wrong with the body of a message. No error repeats what the body says.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("The body is not JSON from line {line}, column {column} on.")]
    NoJson { line: usize, column: usize },
    #[error(
        "The body must be a JSON object with the members institution, channel, to and text, each once."
    )]
    NoObject,
    #[error("The member {member:?} is missing: institution, channel, to and text are needed.")]
    Missing { member: &'static str },
    #[error("The member {member:?} must be a string.")]
    NoText { member: &'static str },
    #[error("The member {member:?} is no name: {source}.")]
    Name { member: &'static str, source: NameError },
    #[error(
        "The member \"to\" is no telephone number: write + and 7 to 15 digits, such as +491701234567."
    )]
    Number,
    #[error("The member \"text\" must be 1 to 1600 characters long.")]
    Length,
}
