//! [`Quota`]: a number of requests per window.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

/// The longest window: a hundred years. So every timestamp is an exact integer in a double, the type of
/// a Redis score.
pub(crate) const LONGEST_WINDOW_US: u64 = 100 * 365 * 24 * 3600 * 1_000_000;

/// A number of requests per sliding window.
///
/// At most `limit` requests lie in `(t - window, t]` for every instant `t`. A request exactly `window`
/// old no longer counts. The limit is at least 1. The window is one microsecond to a hundred years, in
/// whole microseconds.
///
/// The text form is `LIMIT/WINDOW`. The window has the unit `us`, `ms`, `s`, `m`, `h` or `d`:
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::Quota;
///
/// let quota: Quota = "5/60s".parse()?;
/// assert_eq!(quota, Quota::new(5, Duration::from_secs(60)));
/// assert_eq!(Quota::per_hour(100).to_string(), "100/1h");
/// # Ok::<(), tower_sliding_window::ParseQuotaError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: NonZeroU32,
    window_us: NonZeroU64,
}

impl Quota {
    /// Creates a quota of `limit` requests per `window`.
    ///
    /// # Panics
    ///
    /// Where [`Quota::try_new`] returns an error. In a `const` this is a compile error.
    #[track_caller]
    pub const fn new(limit: u32, window: Duration) -> Self {
        match Self::try_new(limit, window) {
            Ok(quota) => quota,
            Err(QuotaError::ZeroLimit) => panic!("the limit is zero: it must be at least 1"),
            Err(QuotaError::ZeroWindow) => panic!("the window is zero: it must be at least 1us"),
            Err(QuotaError::FractionalWindow) => {
                panic!("the window is not a whole number of microseconds")
            }
            Err(QuotaError::WindowTooLong) => panic!("the window is longer than a hundred years"),
        }
    }

    /// Creates a quota of `limit` requests per `window`, or returns an error.
    ///
    /// # Errors
    ///
    /// If the limit is zero, or if the window is zero, longer than a hundred years, or not a whole
    /// number of microseconds.
    pub const fn try_new(limit: u32, window: Duration) -> Result<Self, QuotaError> {
        let Some(limit) = NonZeroU32::new(limit) else {
            return Err(QuotaError::ZeroLimit);
        };
        if window.as_micros() > LONGEST_WINDOW_US as u128 {
            return Err(QuotaError::WindowTooLong);
        }
        if !window.subsec_nanos().is_multiple_of(1000) {
            return Err(QuotaError::FractionalWindow);
        }
        let Some(window_us) = NonZeroU64::new(window.as_micros() as u64) else {
            return Err(QuotaError::ZeroWindow);
        };
        Ok(Self { limit, window_us })
    }

    /// Returns the highest number of requests per window.
    pub const fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// Returns the length of the window.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window_us.get())
    }

    pub(crate) const fn window_us(&self) -> u64 {
        self.window_us.get()
    }
}

/// Declares the quotas of windows that have a name.
macro_rules! quotas_per {
    ($($name:ident: $unit:literal, $seconds:expr;)*) => {$(
        impl Quota {
            #[doc = concat!("Creates a quota of `limit` requests per ", $unit, ".")]
            ///
            /// # Panics
            ///
            /// If `limit` is zero.
            #[track_caller]
            pub const fn $name(limit: u32) -> Self {
                Self::new(limit, Duration::from_secs($seconds))
            }
        }
    )*};
}

quotas_per! {
    per_second: "second", 1;
    per_minute: "60 seconds", 60;
    per_hour: "3600 seconds", 3600;
    per_day: "24 hours", 24 * 3600;
}

impl fmt::Display for Quota {
    /// Writes the window in the longest unit of hours, seconds, milliseconds and microseconds that is
    /// exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit, Span(self.window_us()))
    }
}

pub(crate) struct Span(pub(crate) u64);

impl Span {
    /// Returns the number of units and the unit.
    pub(crate) fn parts(&self) -> (u64, &'static str) {
        let us = self.0;
        [(3_600_000_000, "h"), (1_000_000, "s"), (1_000, "ms")]
            .into_iter()
            .find(|(size, _)| us.is_multiple_of(*size))
            .map_or((us, "us"), |(size, unit)| (us / size, unit))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = self.parts();
        write!(f, "{count}{unit}")
    }
}

impl FromStr for Span {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        let us = parse_window(text.trim()).map(Self);
        us.ok_or_else(|| ParseQuotaError::Window { text: text.to_owned() })
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self})")
    }
}

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        let (limit, window) = text
            .split_once('/')
            .ok_or_else(|| ParseQuotaError::NoSlash { text: text.to_owned() })?;
        let limit = limit
            .trim()
            .parse()
            .map_err(|error| ParseQuotaError::Limit { text: limit.to_owned(), error })?;
        let Span(window_us) = window.parse()?;
        Ok(Self::try_new(limit, Duration::from_micros(window_us))?)
    }
}

/// Returns the microseconds of a length of time.
fn parse_window(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(unit_us)
}

/// The error of a [`Quota`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The limit is zero, so no request could be admitted.
    #[error("the limit is zero: it must be at least 1")]
    ZeroLimit,
    /// The window is zero, so no request could be denied.
    #[error("the window is zero: it must be at least 1us")]
    ZeroWindow,
    /// The window is longer than a hundred years.
    #[error("the window is longer than a hundred years")]
    WindowTooLong,
    /// The window is not a whole number of microseconds, which are the resolution of Redis's clock.
    #[error("the window is not a whole number of microseconds")]
    FractionalWindow,
}

/// The error of the text form of a [`Quota`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuotaError {
    /// The text has no slash.
    #[error("{text:?} is not a quota: write LIMIT/WINDOW, such as 5/60s or 100/1h")]
    NoSlash {
        /// The text.
        text: String,
    },
    /// The part before the slash is not a limit.
    #[error("the limit {text:?} is not a whole number from 1 to 4294967295: {error}")]
    Limit {
        /// The part before the slash.
        text: String,
        /// The error of the number.
        error: std::num::ParseIntError,
    },
    /// The part after the slash is not a length of time.
    #[error(
        "the window {text:?} is not a whole number of us, ms, s, m, h or d, such as 60s or 10m"
    )]
    Window {
        /// The part after the slash.
        text: String,
    },
    /// Both parts can be parsed, but are not a valid quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}
