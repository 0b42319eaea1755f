//! [`Span`]: a length of time on the command line.

use std::str::FromStr;
use std::time::Duration;

/// The longest span: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A length of time of up to a year, written `200ms`, `30s` or `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let span = humantime::parse_duration(text)?;
        if span > LONGEST { Err(SpanError::TooLong) } else { Ok(Self(span)) }
    }
}

/// How long a client may keep a connection without a request.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimeout(pub Duration);

impl FromStr for IdleTimeout {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let Span(timeout) = text.parse()?;
        if timeout.is_zero() { Err(SpanError::Zero) } else { Ok(Self(timeout)) }
    }
}

/// What is wrong with the text of a [`Span`] or an [`IdleTimeout`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpanError {
    /// The text has another form.
    #[error("it is not a length of time such as 30s or 5m: {0}")]
    Text(#[from] humantime::DurationError),
    /// More than a year.
    #[error("it is longer than a year")]
    TooLong,
    /// No time at all.
    #[error("it is zero, in which no request could be read")]
    Zero,
}
