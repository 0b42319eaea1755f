//! The setting that counts the keys denied most.

use super::SlidingWindowLayer;
use crate::offenders::TopOffenders;

impl SlidingWindowLayer {
    /// Sets where the keys of denied requests are counted. Defaults to nowhere.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, TopOffenders, key};
    ///
    /// let offenders = TopOffenders::new(100);
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .top_offenders(&offenders);
    /// assert!(offenders.all().is_empty());
    /// ```
    #[must_use]
    pub fn top_offenders(self, offenders: &TopOffenders) -> Self {
        self.with(|config| config.offenders = Some(offenders.clone()))
    }
}
