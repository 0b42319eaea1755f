//! [`Opening`]: when the sale opens, and how long it is until then.

use std::time::{Duration, Instant, SystemTime};

/// When orders are taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// From the start.
    Now,
    /// From an instant of this process's monotonic clock on.
    At(Instant),
    /// From a moment of the calendar on, by the clock on this machine's wall.
    OnDate(SystemTime),
}

impl Opening {
    /// Returns how long it is until the sale opens, or nothing if it is open.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let wait = match self {
            Self::Now => return None,
            Self::At(instant) => instant.saturating_duration_since(Instant::now()),
            Self::OnDate(date) => date.duration_since(SystemTime::now()).unwrap_or_default(),
        };
        (!wait.is_zero()).then_some(wait)
    }
}
