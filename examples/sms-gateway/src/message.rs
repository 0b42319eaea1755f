//! [`Message`]: what is to be sent, read from the body of a request.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use crate::name::Name;
use crate::parts::parts;

/// A message on its way to a receiver. No error of reading one repeats what the body says.
#[derive(Deserialize)]
#[serde(from = "Written")]
pub(crate) struct Message {
    pub(crate) institution: Name,
    pub(crate) channel: Name,
    pub(crate) to: String,
    pub(crate) text: String,
    /// How many short messages the text is sent as, each of which takes a place at every level.
    pub(crate) parts: u32,
}

/// A message as the body says it.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    institution: Name,
    channel: Name,
    #[serde(deserialize_with = "number")]
    to: String,
    #[serde(deserialize_with = "text")]
    text: String,
}

impl From<Written> for Message {
    fn from(Written { institution, channel, to, text }: Written) -> Self {
        let parts = parts(&text);
        Self { institution, channel, to, text, parts }
    }
}

/// Reads a telephone number in the form of ITU-T E.164: `+`, then 7 to 15 digits, the first not 0.
///
/// One spelling only: a receiver with two would have two windows.
fn number<'de, D: Deserializer<'de>>(member: D) -> Result<String, D::Error> {
    let fits = |text: &str| {
        let digits = text.strip_prefix('+').unwrap_or_default();
        let all = digits.bytes().all(|byte| byte.is_ascii_digit());
        all && (7..=15).contains(&digits.len()) && !digits.starts_with('0')
    };
    match Value::deserialize(member)? {
        Value::String(text) if fits(&text) => Ok(text),
        _ => Err(D::Error::custom(
            "\"to\" is no telephone number: write + and 7 to 15 digits, such as +491701234567",
        )),
    }
}

/// Reads a text of a length that handsets join.
fn text<'de, D: Deserializer<'de>>(member: D) -> Result<String, D::Error> {
    match Value::deserialize(member)? {
        Value::String(text) if (1..=1600).contains(&text.chars().count()) => Ok(text),
        _ => Err(D::Error::custom("\"text\" must be 1 to 1600 characters long")),
    }
}
