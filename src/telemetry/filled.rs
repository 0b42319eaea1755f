//! [`Filled`]: what has a capacity, and the gauges of how much it holds.

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicI64, Ordering};

#[cfg(feature = "metrics")]
use super::describe;

/// What has a capacity: an in-process store, or the journal of an outage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filled {
    Memory,
    #[cfg(feature = "redis")]
    Journal,
}

impl Filled {
    /// Reports by how much that which one of these holds has changed.
    pub(crate) fn changed(self, by: i64) {
        #[cfg(feature = "metrics")]
        match self {
            Self::Memory => MEMORY_LOGS.change(by),
            #[cfg(feature = "redis")]
            Self::Journal => JOURNAL_CHANGES.change(by),
        }
    }

    pub(crate) fn nearly_full(self, held: usize, capacity: usize) {
        #[cfg(feature = "metrics")]
        self.nearly_full_ones().change(1);
        #[cfg(feature = "tracing")]
        match self {
            Self::Memory => tracing::warn!(
                held,
                capacity,
                "an in-process store is nearly full: at its capacity it refuses keys without a log; \
                 add a rule by address beside the rule by user, or raise the capacity"
            ),
            #[cfg(feature = "redis")]
            Self::Journal => tracing::warn!(
                held,
                capacity,
                "the journal of an outage is nearly full: at its capacity further requests get an \
                 error until the store answers"
            ),
        }
    }

    pub(crate) fn has_room(self) {
        #[cfg(feature = "metrics")]
        self.nearly_full_ones().change(-1);
    }

    #[cfg(feature = "metrics")]
    fn nearly_full_ones(self) -> &'static Sum {
        match self {
            Self::Memory => &MEMORY_NEARLY_FULL,
            #[cfg(feature = "redis")]
            Self::Journal => &JOURNAL_NEARLY_FULL,
        }
    }
}

/// A gauge of the sum of what all stores have reported.
///
/// It is set, not incremented, so that a recorder that is installed late, and one that has dropped an
/// idle gauge, gets the whole sum with the next report.
#[cfg(feature = "metrics")]
struct Sum {
    name: &'static str,
    total: AtomicI64,
}

#[cfg(feature = "metrics")]
impl Sum {
    const fn new(name: &'static str) -> Self {
        Self { name, total: AtomicI64::new(0) }
    }

    fn change(&self, by: i64) {
        describe::to_present();
        let mut total = self.total.fetch_add(by, Ordering::SeqCst) + by;
        loop {
            metrics::gauge!(self.name).set(total as f64);
            // Another thread may have set the gauge to an earlier sum after this one.
            let latest = self.total.load(Ordering::SeqCst);
            if latest == total {
                return;
            }
            total = latest;
        }
    }
}

#[cfg(feature = "metrics")]
static MEMORY_LOGS: Sum = Sum::new("sliding_window_memory_logs");
#[cfg(feature = "metrics")]
static MEMORY_NEARLY_FULL: Sum = Sum::new("sliding_window_memory_nearly_full");
#[cfg(all(feature = "metrics", feature = "redis"))]
static JOURNAL_CHANGES: Sum = Sum::new("sliding_window_journal_changes");
#[cfg(all(feature = "metrics", feature = "redis"))]
static JOURNAL_NEARLY_FULL: Sum = Sum::new("sliding_window_journal_nearly_full");
