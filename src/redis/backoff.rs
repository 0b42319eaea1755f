//! [`Backoff`]: ever longer pauses between attempts.

use std::time::Duration;

use uuid::Uuid;

/// Pauses that double from a first to a longest one, each shortened at random by up to a half, so
/// that a fleet that has lost its store at one moment does not come back at one moment.
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Begins again with the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }

    fn next_pause(&mut self) -> Duration {
        // The random bits of a UUID: nothing else here needs a generator.
        let random = Uuid::new_v4().as_u64_pair().1 as u32;
        let shortened = self.next.mul_f64(1.0 - 0.5 * f64::from(random) / f64::from(u32::MAX));
        self.next = (self.next * 2).min(self.longest);
        shortened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(100));
        let mut backoff = Backoff::new(first, longest);
        for full in [10, 20, 40, 80, 100, 100] {
            let (full, pause) = (Duration::from_millis(full), backoff.next_pause());
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        let many: std::collections::HashSet<_> = (0..10).map(|_| backoff.next_pause()).collect();
        assert!(many.len() > 1, "no two processes are to come back together");
        backoff.reset();
        assert!(backoff.next_pause() <= first);
    }
}
