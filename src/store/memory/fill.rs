//! [`Fill`]: reports when a store becomes nearly full, and when it has room again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::telemetry;

pub(super) struct Fill {
    /// 80 % of the capacity. The store becomes nearly full at this many logs.
    high: usize,
    /// 70 % of the capacity. The store has room again below this many logs. The distance from `high`
    /// prevents repeated reports of a store that holds about `high` logs.
    low: usize,
    capacity: usize,
    nearly_full: AtomicBool,
}

impl Fill {
    pub(super) fn new(capacity: usize) -> Self {
        let high = capacity - capacity / 5;
        let low = high - capacity / 10;
        Self { high, low, capacity, nearly_full: AtomicBool::new(false) }
    }

    /// Reports a change. Must not be called under a lock, because a subscriber or recorder may use the
    /// store.
    pub(super) fn report(&self, held: usize) {
        let was = self.nearly_full.load(Ordering::Relaxed);
        let is = if was { held >= self.low } else { held >= self.high && held > 0 };
        if is == was || self.nearly_full.swap(is, Ordering::Relaxed) == is {
            return;
        }
        if is {
            telemetry::memory_nearly_full(held, self.capacity);
        } else {
            telemetry::memory_has_room();
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if *self.nearly_full.get_mut() {
            telemetry::memory_has_room();
        }
    }
}
