//! Lengths of time in microseconds, as every store counts them.

use std::time::Duration;

/// Returns a length of time in whole microseconds, at most [`u64::MAX`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
