//! [`Opening`]: when the sale opens, and how long it is until then.

mod clock;
mod date;
mod fleet;

use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use example_support::problem::Problem;
use tokio::sync::watch;

pub(crate) use self::clock::RedisClock;
pub(crate) use self::date::date;
pub(crate) use self::fleet::agree;

/// When to try again while Redis does not tell the time.
const UNKNOWN: Duration = Duration::from_secs(1);

/// When the sale is to open, as the flags say it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WantedOpening {
    AtOnce,
    In(Duration),
    At(SystemTime),
}

/// When orders are taken from.
#[derive(Clone, Debug)]
pub(crate) enum Opening {
    AtOnce,
    /// An instant of this process's monotonic clock.
    Instant(Instant),
    /// A moment of the calendar, by the clock of this machine.
    Date(SystemTime),
    /// A moment on the clock of Redis. One task follows that clock, so that no order has to.
    Fleet(watch::Receiver<Gate>),
}

/// What is known of an opening on the clock of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Redis has said that the opening is past. It stays open, whatever happens to that clock.
    Open,
    /// About when Redis is expected to say so.
    Opens(tokio::time::Instant),
    /// That instant is past, and Redis does not tell the time.
    Unknown,
}

impl Opening {
    /// Opens a sale that a single server holds, on its own clock.
    pub(crate) fn here(wanted: WantedOpening) -> Self {
        match wanted {
            WantedOpening::AtOnce => Self::AtOnce,
            WantedOpening::In(delay) => Self::Instant(Instant::now() + delay),
            WantedOpening::At(date) => Self::Date(date),
        }
    }

    /// Passes if the sale is open.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let Some(wait) = self.opens_in() else { return Ok(()) };
        match self {
            Self::Fleet(gate) if *gate.borrow() == Gate::Unknown => {
                Err(Problem::reduced_capacity(wait))
            }
            _ => Err(not_open(wait)),
        }
    }

    /// Returns how long it is until the sale opens, as far as that is known, or nothing if it is open.
    pub(crate) fn opens_in(&self) -> Option<Duration> {
        let wait = match self {
            Self::AtOnce => None,
            Self::Instant(at) => Some(at.saturating_duration_since(Instant::now())),
            Self::Date(at) => at.duration_since(SystemTime::now()).ok(),
            Self::Fleet(gate) => match *gate.borrow() {
                Gate::Open => return None,
                // No order is taken before Redis has said so, also when the time has come.
                Gate::Opens(at) => {
                    return Some(at.duration_since(tokio::time::Instant::now()));
                }
                Gate::Unknown => return Some(UNKNOWN),
            },
        };
        wait.filter(|wait| !wait.is_zero())
    }
}

fn not_open(wait: Duration) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "sale-not-open", "The sale is not open")
        .detail("Orders sent before the opening count in the window all the same.")
        .retry_after(wait)
}
