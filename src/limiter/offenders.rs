//! The setting that counts the keys denied most.

use super::Limiter;
use crate::offenders::TopOffenders;

impl Limiter {
    /// Sets where the keys of denied requests are counted. Defaults to nowhere.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota, TopOffenders};
    ///
    /// let offenders = TopOffenders::new(100);
    /// let limiter =
    ///     Limiter::new(Quota::per_minute(5), MemoryStore::new()).top_offenders(&offenders);
    /// assert!(offenders.all().is_empty());
    /// ```
    #[must_use]
    pub fn top_offenders(mut self, offenders: &TopOffenders) -> Self {
        self.offenders = Some(offenders.clone());
        self
    }
}
