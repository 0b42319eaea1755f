//! [`Tally`]: counts over a sliding window of time.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use example_support::flags::span;

/// How many slots a window is divided into.
const SLOTS: usize = 20;

/// Counts of `N` kinds over a window, to a twentieth of it: what is older is not counted, and what
/// is younger than nineteen twentieths is. Its size does not depend on how much is counted.
pub(crate) struct Tally<const N: usize> {
    slots: [[u64; N]; SLOTS],
    slot: Duration,
    epoch: Instant,
    /// The number of the slot that is counted in, from the epoch on.
    current: u128,
}

impl<const N: usize> Tally<N> {
    /// Creates a tally that begins now, over a [`window`].
    pub(crate) fn new(window: Duration) -> Self {
        Self {
            slots: [[0; N]; SLOTS],
            slot: window / SLOTS as u32,
            epoch: Instant::now(),
            current: 0,
        }
    }

    /// Counts one occurrence of each kind that is marked.
    pub(crate) fn add(&mut self, marks: [bool; N]) {
        self.turn();
        let slot = &mut self.slots[(self.current % SLOTS as u128) as usize];
        for (count, mark) in slot.iter_mut().zip(marks) {
            *count += u64::from(mark);
        }
    }

    /// Returns the counts.
    pub(crate) fn sum(&mut self) -> [u64; N] {
        self.turn();
        let mut sum = [0; N];
        for slot in &self.slots {
            sum.iter_mut().zip(slot).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    /// Empties the slots that have left the window.
    fn turn(&mut self) {
        let now = self.epoch.elapsed().as_nanos() / self.slot.as_nanos();
        let passed = now.saturating_sub(self.current).min(SLOTS as u128);
        for slot in now.saturating_sub(passed) + 1..=now {
            self.slots[(slot % SLOTS as u128) as usize] = [0; N];
        }
        self.current = now;
    }
}

/// Reads a length of time over which a tally counts.
pub(crate) fn window(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let window = span(text)?;
    let is_long_enough = window >= Duration::from_millis(100);
    if is_long_enough { Ok(window) } else { Err("it is shorter than 100ms".into()) }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tally_counts_what_is_in_its_window() {
        let second = Duration::from_secs(1);
        let mut tally = Tally::<2>::new(20 * second);
        tally.add([true, false]);
        advance(10 * second).await;
        tally.add([true, true]);
        advance(10 * second - Duration::from_nanos(1)).await;
        assert_eq!(tally.sum(), [2, 1]);
        advance(Duration::from_nanos(1)).await;
        assert_eq!(tally.sum(), [1, 1]);
        advance(1_000_000 * second).await;
        assert_eq!(tally.sum(), [0, 0]);
    }
}
