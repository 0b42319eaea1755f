//! [`Record`]: a decision as a line of JSON.

use std::io::{self, BufRead};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::micros;
use crate::window::ensure_cost;

/// The latest time of a record: the end of the year 9999.
const LATEST_S: f64 = 253_402_300_800.0;
const MICROS: f64 = 1_000_000.0;

/// A decision about a request in one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// When the request was decided about, since the Unix epoch. In JSON it is in seconds.
    #[serde(serialize_with = "to_seconds", deserialize_with = "from_seconds")]
    pub time: Duration,
    /// The name of the policy. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The key, in the form of the recorder's [`KeyForm`](super::KeyForm).
    pub key: String,
    /// How many places the request takes, 0 to 1024. Defaults to 1.
    #[serde(default = "one", deserialize_with = "possible_cost")]
    pub cost: u32,
    /// Whether the request was admitted, which is the decision of all its policies together.
    pub admitted: bool,
}

impl Record {
    /// Creates the record of a request of cost 1 without the name of a policy.
    #[must_use]
    pub fn new(time: Duration, key: impl Into<String>, admitted: bool) -> Self {
        Self { time, policy: None, key: key.into(), cost: 1, admitted }
    }
}

const fn one() -> u32 {
    1
}

fn possible_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let cost = u32::deserialize(deserializer)?;
    ensure_cost(cost).map_err(de::Error::custom)?;
    Ok(cost)
}

fn to_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(micros(*time) as f64 / MICROS)
}

/// Reads seconds. Until the year 2200 a double holds them exactly to the microsecond.
fn from_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    if !(0.0..LATEST_S).contains(&seconds) {
        return Err(de::Error::custom("the time must be in seconds since the Unix epoch"));
    }
    Ok(Duration::from_micros((seconds * MICROS).round() as u64))
}

/// Why a history can't be read. No message has the text of the line, which may have a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The input failed.
    #[error("the history can't be read: {0}")]
    Input(#[from] io::Error),
    /// A line is no record.
    #[error("line {line} of the history is no record: {message}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        message: String,
    },
}

/// Reads records, one on each line. Empty lines are skipped, and so is a last line that was cut off, as the
/// end of a program can leave it.
pub fn read(mut input: impl BufRead) -> impl Iterator<Item = Result<Record, ReadError>> {
    let (mut number, mut text, mut has_failed) = (0, Vec::new(), false);
    std::iter::from_fn(move || {
        while !has_failed {
            text.clear();
            number += 1;
            match input.read_until(b'\n', &mut text) {
                Ok(0) => return None,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => match serde_json::from_slice(&text) {
                    Ok(record) => return Some(Ok(record)),
                    Err(error) if error.is_eof() && text.last() != Some(&b'\n') => return None,
                    Err(error) => {
                        let message = without_text(&error);
                        return Some(Err(ReadError::Line { line: number, message }));
                    }
                },
                Err(error) => {
                    has_failed = true;
                    return Some(Err(error.into()));
                }
            }
        }
        None
    })
}

/// Says what is wrong without the values of the line: a message of `serde_json` may quote them.
fn without_text(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        serde_json::error::Category::Data => {
            "it needs a time in seconds, a key and whether it was admitted; a cost is at most 1024"
        }
        _ => "it is not JSON",
    };
    format!("{kind}, at column {}", error.column())
}
