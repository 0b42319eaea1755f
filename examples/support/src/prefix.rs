//! [`Prefix`]: what the Redis keys begin with.

use std::str::FromStr;

/// What the Redis keys begin with.
#[derive(Clone, Debug)]
pub struct Prefix(pub String);

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        if text.is_empty() || text.len() > 64 || !text.bytes().all(allowed) {
            return Err(PrefixError);
        }
        Ok(Self(text.to_owned()))
    }
}

/// A text is not a [`Prefix`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a prefix is 1 to 64 characters of A-Z a-z 0-9 _ . : -")]
pub struct PrefixError;
