//! [`Fill`]: how full something with a capacity is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::telemetry::Filled;

/// Reports how much is held, when it becomes nearly full, and when it has room again.
#[derive(Debug)]
pub(super) struct Fill {
    filled: Filled,
    /// 80 % of the capacity. At this many it becomes nearly full.
    high: usize,
    /// 70 % of the capacity. Below this many it has room again. The distance from `high` prevents
    /// repeated reports while it holds about `high`.
    low: usize,
    capacity: usize,
    nearly_full: AtomicBool,
    /// How many the gauge includes. It may lag by a 64th, so that a flood of new keys does not pay for
    /// the gauge.
    reported: AtomicUsize,
}

impl Fill {
    pub(super) fn new(filled: Filled, capacity: usize) -> Self {
        let high = capacity - capacity / 5;
        let low = high - capacity / 10;
        let (nearly_full, reported) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { filled, high, low, capacity, nearly_full, reported }
    }

    /// Reports a change. Must not be called under a lock, because a subscriber or recorder may use the store.
    pub(super) fn report(&self, held: usize) {
        let was = self.nearly_full.load(Ordering::Relaxed);
        let is = if was { held >= self.low } else { held >= self.high && held > 0 };
        if is != was {
            self.report_nearly_full(held, is);
        }
        let reported = self.reported.load(Ordering::Relaxed);
        if cfg!(feature = "metrics") && held.abs_diff(reported) > reported / 64 {
            self.report_held(held);
        }
    }

    fn report_nearly_full(&self, held: usize, is: bool) {
        if self.nearly_full.swap(is, Ordering::Relaxed) == is {
            return;
        }
        if is {
            self.filled.nearly_full(held, self.capacity);
        } else {
            self.filled.has_room();
        }
    }

    fn report_held(&self, held: usize) {
        let before = self.reported.swap(held, Ordering::Relaxed);
        self.filled.changed(held as i64 - before as i64);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.report_held(0);
        if *self.nearly_full.get_mut() {
            self.filled.has_room();
        }
    }
}
