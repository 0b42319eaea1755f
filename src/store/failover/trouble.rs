//! [`Trouble`]: when the store was last seen to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::store::Check;
use crate::window::micros;

/// When the store was last seen to fail. Clones are one.
#[derive(Clone, Debug)]
pub(in crate::store) struct Trouble(Arc<TroubleClock>);

#[derive(Debug)]
struct TroubleClock {
    epoch: Instant,
    /// Microseconds since the epoch, plus 1; 0 if never.
    last: AtomicU64,
}

impl Trouble {
    pub(in crate::store) fn new() -> Self {
        Self(Arc::new(TroubleClock { epoch: Instant::now(), last: AtomicU64::new(0) }))
    }

    /// Notes that there is trouble now.
    pub(in crate::store) fn mark(&self) {
        self.0.last.fetch_max(self.now_us() + 1, Ordering::SeqCst);
    }

    /// Tells whether a window of the request may reach back to the last trouble.
    pub(super) fn matters_to(&self, check: &Check) -> bool {
        let last = self.0.last.load(Ordering::SeqCst);
        let horizons = check.partitions.iter().map(|partition| partition.policy.horizon_us());
        last > 0 && self.now_us() < last.saturating_add(horizons.max().unwrap_or(0))
    }

    fn now_us(&self) -> u64 {
        micros(self.0.epoch.elapsed())
    }
}
