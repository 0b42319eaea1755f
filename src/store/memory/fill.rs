//! [`Fill`]: tells once when a store is filling up, and once when there is room again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::telemetry;

/// How full a store is, as far as it was told.
pub(super) struct Fill {
    /// From so many logs on the store is nearly full: 80 % of its capacity.
    high: usize,
    /// Below so many it is not any more: 70 % of its capacity. A store that holds about as many as
    /// `high` all the time is told of once.
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

    /// Compares how many logs the store holds with what was told last. Not to be called under a
    /// lock: a subscriber or recorder may use the store itself.
    pub(super) fn notice(&self, held: usize) {
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
