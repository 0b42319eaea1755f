//! [`Backoff`]: growing pauses between attempts.

use std::time::Duration;

use crate::time::random_part;

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
