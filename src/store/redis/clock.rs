//! [`StoreClock`]: when something on the store's clock was, on that of this process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::micros;

/// The least difference between the two clocks that a reply has shown.
///
/// A reply shows the difference of the clocks and its own delay. So a timestamp that is mapped by the
/// least of them is never too early, or a local log would admit too many in an outage, and too late by the
/// least delay only. After a prompt reply, a client that waits as long as a denial says waits long enough.
pub(super) struct StoreClock {
    epoch: Instant,
    least_us: AtomicI64,
}

impl StoreClock {
    pub(super) fn new() -> Self {
        Self { epoch: Instant::now(), least_us: AtomicI64::new(i64::MAX) }
    }

    /// Returns when a request was counted, from the timestamp of a reply that has just arrived.
    ///
    /// A timestamp from before the request was sent shows that the store's clock has stepped back, or that it is
    /// slower. Then the least difference is too small, and this one takes its place.
    pub(super) fn local(&self, timestamp: Duration, sent: Instant) -> Instant {
        let (now, timestamp_us) = (Instant::now(), signed(micros(timestamp)));
        let difference_us = signed(micros(now.duration_since(self.epoch))) - timestamp_us;
        let least_us = self.least_us.fetch_min(difference_us, Ordering::Relaxed).min(difference_us);
        let since_epoch_us = u64::try_from(timestamp_us.saturating_add(least_us)).unwrap_or(0);
        let at = self.epoch + Duration::from_micros(since_epoch_us);
        if at < sent {
            self.least_us.store(difference_us, Ordering::Relaxed);
            return now;
        }
        at.min(now)
    }
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn least_delay_dates_an_admission() {
        let clock = StoreClock::new();
        let start = Instant::now();
        // The store's clock shows an hour more.
        let counted = |ms: u32| Duration::from_secs(3_600) + ms * MS;
        advance(12 * MS).await;
        // Sent at 0, counted at 10, received at 12: nothing better is known than the time of the reply.
        assert_eq!(clock.local(counted(10), start), start + 12 * MS);
        advance(988 * MS).await;
        // Sent at 100, it waited until 900, and the reply took 100.
        assert_eq!(clock.local(counted(900), start + 100 * MS), start + 902 * MS);
        // The store's clock steps back: the reply may show a delay as before, or none.
        assert_eq!(clock.local(counted(50), start + 950 * MS), start + 1_000 * MS);
        assert_eq!(clock.local(counted(40), start + 950 * MS), start + 990 * MS);
        // And forward.
        assert_eq!(clock.local(counted(9_000), start + 950 * MS), start + 1_000 * MS);
    }
}
