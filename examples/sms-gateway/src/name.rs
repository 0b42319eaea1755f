//! [`Name`]: what institutions, channels and destinations are called.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// The name of an institution or a channel: 1 to 64 characters of `a-z 0-9 _ . -`. That of a
/// destination is what its telephone numbers begin with.
///
/// Lower case only: a name that can be spelt in two ways would have two windows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the name of a destination: `+49`, or `+` for all numbers.
    pub(crate) fn destination(text: &str) -> Result<Self, NameError> {
        let digits = text
            .strip_prefix('+')
            .filter(|digits| digits.len() <= 15 && digits.bytes().all(|it| it.is_ascii_digit()));
        match digits {
            Some(digits) if !digits.starts_with('0') => Ok(Self(text.to_owned())),
            _ => Err(NameError::Destination),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Senders choose names, so they may be logged at the level debug only.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({} bytes)", self.0.len())
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed =
            |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"_.-".contains(&it);
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
        if fits { Ok(Self(text.to_owned())) } else { Err(NameError::Characters) }
    }
}

impl TryFrom<Value> for Name {
    type Error = NameError;

    fn try_from(value: Value) -> Result<Self, NameError> {
        value.as_str().ok_or(NameError::Characters)?.parse()
    }
}

/// A text is no [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("a name is 1 to 64 characters of a-z 0-9 _ . -")]
    Characters,
    #[error("a destination is + and what its numbers begin with, such as +49, or + for all")]
    Destination,
}
