//! Lengths of time, and how often something is done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// Returns a length of time in whole microseconds, capped at [`u64::MAX`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a random part of a length of time.
pub(crate) fn random_part(time: Duration) -> Duration {
    // The random bits of a UUID save a dependency on a generator.
    let random = Uuid::new_v4().as_u64_pair().1 as u32;
    time.mul_f64(f64::from(random) / (f64::from(u32::MAX) + 1.0))
}

/// Returns the pause before the next attempt after so many others: they double from `first` to `longest`.
///
/// Each pause is shortened by a random part of up to a half, so that the processes of a fleet do
/// not try again at the same moment.
#[cfg(feature = "redis")]
pub(crate) fn pause_after(attempts: u32, first: Duration, longest: Duration) -> Duration {
    let full = first.saturating_mul(2_u32.saturating_pow(attempts)).min(longest);
    full - random_part(full / 2)
}

/// Lets at most one caller act in each pause.
pub(crate) struct Pace {
    epoch: Instant,
    /// When it was done last, in microseconds after the epoch. [`u64::MAX`] if it was not done yet.
    last_us: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), last_us: AtomicU64::new(u64::MAX) }
    }

    /// Takes it as done now.
    #[cfg(feature = "redis")]
    pub(crate) fn done() -> Self {
        Self { last_us: AtomicU64::new(0), ..Self::new() }
    }

    /// Returns true to at most one caller in each `pause`. That caller acts.
    pub(crate) fn is_due(&self, pause: Duration) -> bool {
        let (now_us, last_us) =
            (micros(self.epoch.elapsed()), self.last_us.load(Ordering::Relaxed));
        let (exchange, order) = (AtomicU64::compare_exchange, Ordering::Relaxed);
        (last_us == u64::MAX || now_us.saturating_sub(last_us) >= micros(pause))
            && exchange(&self.last_us, last_us, now_us, order, order).is_ok()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_differ() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(100));
        for (attempts, full) in (0..).zip([10, 20, 40, 80, 100, 100]).chain([(u32::MAX, 100)]) {
            let (full, pause) =
                (Duration::from_millis(full), pause_after(attempts, first, longest));
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        let many: std::collections::HashSet<_> =
            (0..10).map(|_| pause_after(9, first, longest)).collect();
        assert!(many.len() > 1, "all pauses are equal");
    }
}
