//! Conversion of lengths of time to numbers.

use std::time::Duration;

/// Returns a length of time in whole microseconds, capped at [`u64::MAX`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a length of time in nanoseconds, capped at [`u64::MAX`].
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
