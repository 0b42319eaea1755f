//! [`Fill`]: how full something with a capacity is.

#[cfg(feature = "metrics")]
use std::sync::atomic::AtomicI64;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(feature = "metrics")]
use super::describe;

/// What has a capacity.
pub(crate) struct Filled {
    held: Sum,
    nearly_full: Sum,
    warning: &'static str,
}

pub(crate) static MEMORY: Filled = Filled {
    held: Sum::new("sliding_window_memory_logs"),
    nearly_full: Sum::new("sliding_window_memory_nearly_full"),
    warning: "an in-process store is nearly full: at its capacity it refuses keys without a log; \
              add a rule by address beside the rule by user, or raise the capacity",
};

pub(crate) static JOURNAL: Filled = Filled {
    held: Sum::new("sliding_window_journal_changes"),
    nearly_full: Sum::new("sliding_window_journal_nearly_full"),
    warning: "the journal of an outage is nearly full: at its capacity further requests get an \
              error until the store answers",
};

/// The lost connections to Redis. The gauge says whether there are none.
pub(super) static LOST_CONNECTIONS: Sum = Sum {
    #[cfg(feature = "metrics")]
    shown: |lost| f64::from(lost <= 0),
    ..Sum::new("sliding_window_store_available")
};

/// Reports how much is held, when it becomes nearly full, and when it has room again.
pub(crate) struct Fill {
    filled: &'static Filled,
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
    pub(crate) fn new(filled: &'static Filled, capacity: usize) -> Self {
        let high = capacity - capacity / 5;
        let low = high - capacity / 10;
        let (nearly_full, reported) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { filled, high, low, capacity, nearly_full, reported }
    }

    pub(crate) fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Ordering::Relaxed)
    }

    /// Reports a change. Must not be called under a lock, because a subscriber or recorder may use the store.
    pub(crate) fn report(&self, held: usize) {
        let was = self.nearly_full.load(Ordering::Relaxed);
        let is = if was { held >= self.low } else { held >= self.high && held > 0 };
        if is != was && self.nearly_full.swap(is, Ordering::Relaxed) == was {
            self.filled.nearly_full.change(if is { 1 } else { -1 });
            if is {
                event!(warn, held, capacity = self.capacity, "{}", self.filled.warning);
            }
        }
        let reported = self.reported.load(Ordering::Relaxed);
        if cfg!(feature = "metrics") && held.abs_diff(reported) > reported / 64 {
            self.report_held(held);
        }
    }

    fn report_held(&self, held: usize) {
        let before = self.reported.swap(held, Ordering::Relaxed);
        self.filled.held.change(held as i64 - before as i64);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.report_held(0);
        if *self.nearly_full.get_mut() {
            self.filled.nearly_full.change(-1);
        }
    }
}

/// A gauge of the sum of what all stores have reported.
///
/// It is set, not incremented, so that a recorder that is installed late, and one that has dropped an
/// idle gauge, gets the whole sum with the next report.
pub(super) struct Sum {
    name: &'static str,
    #[cfg(feature = "metrics")]
    shown: fn(i64) -> f64,
    #[cfg(feature = "metrics")]
    total: AtomicI64,
}

impl Sum {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            #[cfg(feature = "metrics")]
            shown: |total| total as f64,
            #[cfg(feature = "metrics")]
            total: AtomicI64::new(0),
        }
    }

    /// Adds to the sum, and shows it. Must not be called under a lock, see [`Fill::report`].
    pub(super) fn change(&self, by: i64) {
        #[cfg(feature = "metrics")]
        {
            describe::to_present();
            let mut total = self.total.fetch_add(by, Ordering::SeqCst) + by;
            loop {
                metrics::gauge!(self.name).set((self.shown)(total));
                // Another thread may have set the gauge to an earlier sum after this one.
                let latest = self.total.load(Ordering::SeqCst);
                if latest == total {
                    return;
                }
                total = latest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_begins_at_80_percent_and_ends_below_70() {
        let fill = Fill::new(&MEMORY, 100);
        for (held, is_nearly_full) in
            [(79, false), (80, true), (70, true), (69, false), (79, false)]
        {
            fill.report(held);
            assert_eq!(fill.is_nearly_full(), is_nearly_full, "{held}");
        }
    }
}
