//! [`Backoff`]: growing pauses between attempts. [`Pace`]: the least time between two looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::{micros, random_part};

/// Pauses between attempts: they double from `first` to `longest`.
///
/// Each pause is shortened by a random part of up to a half, so that the processes of a fleet do
/// not reconnect at the same moment.
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let shortened = self.next - random_part(self.next / 2);
        self.next = (self.next * 2).min(self.longest);
        shortened
    }
}

/// How often something is done at most.
pub(crate) struct Pace {
    epoch: Instant,
    /// When it was done last, in microseconds after the epoch.
    last_us: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), last_us: AtomicU64::new(0) }
    }

    /// Returns whether the last time is a pause ago. Who hears so does it.
    pub(crate) fn is_due(&self, pause: Duration) -> bool {
        let (now_us, last_us) =
            (micros(self.epoch.elapsed()), self.last_us.load(Ordering::Relaxed));
        let (exchange, order) = (AtomicU64::compare_exchange, Ordering::Relaxed);
        now_us.saturating_sub(last_us) >= micros(pause)
            && exchange(&self.last_us, last_us, now_us, order, order).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_differ() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(100));
        let mut backoff = Backoff::new(first, longest);
        for full in [10, 20, 40, 80, 100, 100] {
            let (full, pause) = (Duration::from_millis(full), backoff.next_pause());
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        let many: std::collections::HashSet<_> = (0..10).map(|_| backoff.next_pause()).collect();
        assert!(many.len() > 1, "all pauses are equal");
        backoff.reset();
        assert!(backoff.next_pause() <= first);
    }
}
