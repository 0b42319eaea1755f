//! [`Bucket`]: the global token bucket behind the levels.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{InsufficientCapacity, Quota as Refill, RateLimiter};
use tokio::time::Instant;
use tower_sliding_window::Quota;

use crate::gateway::Refusal;
use crate::refusals::Refuser;

/// Admits a number of messages in a length of time, and after a pause as many at once.
///
/// It is this server's own, and guards what is behind it: every message that the levels admit takes a
/// token for each of its parts.
pub(crate) struct Bucket {
    tokens: RateLimiter<NotKeyed, InMemoryState, Monotonic, NoOpMiddleware<Duration>>,
    quota: Quota,
}

impl Bucket {
    /// Creates a bucket that is full.
    pub(crate) fn new(quota: Quota) -> Result<Self, TooFast> {
        let limit = NonZeroU32::new(quota.limit()).ok_or(TooFast)?;
        let refill = Refill::with_period(quota.window() / quota.limit()).ok_or(TooFast)?;
        let clock = Monotonic(Instant::now());
        let tokens = RateLimiter::direct_with_clock(refill.allow_burst(limit), clock);
        Ok(Self { tokens, quota })
    }

    /// Takes a token for each part of a message, or none.
    pub(crate) fn take(&self, parts: u32) -> Result<(), Refusal> {
        let now = self.tokens.clock().now();
        let tokens = NonZeroU32::new(parts).unwrap_or(NonZeroU32::MIN);
        match self.tokens.check_n(tokens) {
            Ok(taken) => taken.map_err(|until| Refusal::Global(until.wait_time_from(now))),
            Err(InsufficientCapacity(most)) => {
                Err(Refusal::TooLong { refuser: Refuser::Global, most })
            }
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }
}

/// A rate is higher than a clock of nanoseconds can tell.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("more than a token a nanosecond: lower the limit or lengthen the window")]
pub(crate) struct TooFast;

/// Tokio's clock, which the windows in this process have too.
#[derive(Clone)]
struct Monotonic(Instant);

impl Clock for Monotonic {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
