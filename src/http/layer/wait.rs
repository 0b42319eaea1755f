//! The settings with which a request waits for room.

use std::time::Duration;

use super::SlidingWindowLayer;

impl SlidingWindowLayer {
    /// Sets how long a request waits for room before it is denied.
    ///
    /// Defaults to zero: no request waits. A wait may be a twentieth longer, as those that are admitted one after the
    /// other are each a little late.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// // A burst of an honest client is smoothed. What would take longer gets a 429 at once.
    /// SlidingWindowLayer::new(Quota::per_second(5), key::header("x-user-id"), MemoryStore::new())
    ///     .max_wait(Duration::from_secs(2));
    /// ```
    ///
    /// ## Behavior
    ///
    /// - **Order.** The requests that wait for the same key of a rule are admitted in the order of their
    ///   arrival, in this process, as by
    ///   [`Limiter::until_admitted_all`](crate::Limiter::until_admitted_all). Those of other processes take a
    ///   place when they find one.
    /// - **Denials.** A request is denied at once, with an honest `Retry-After`, if time alone frees its place
    ///   too late, behind those that wait before it, and if [`max_waiters`](Self::max_waiters) wait already.
    ///   A banned key, and a cost that can never pass, are denied at once too.
    /// - **Requests in flight.** Nobody knows when one is [over](crate::Policy::in_flight). So the first request that
    ///   waits for such a place looks for it 20 times a second, and a denial has no `Retry-After`.
    /// - **Hanging up.** If the client hangs up, the request leaves its queue, the next one goes on, and no log
    ///   has recorded it.
    /// - **Cost.** Only the first request of a queue sends checks: when its place is free by time, and once a
    ///   second before that. Each check counts in the metrics as any other, and under a policy with a
    ///   [`Penalty`](crate::Penalty) a denied one can be a strike. Each check takes keys, costs and policies
    ///   from the request anew, so a raised limit is noticed within a second.
    /// - **Decisions.** [`on_decision`](Self::on_decision) is called with the last decision only. In
    ///   [shadow mode](Self::shadow) no request waits.
    /// - **Resources.** A waiting request holds its connection, its body and the inner service that was ready
    ///   for it. With a limit of concurrent requests, such as tower's `ConcurrencyLimit`, it holds a place
    ///   there too, whether that limit is inside or outside of this layer.
    ///
    /// It needs a tokio runtime with its timer.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|config| config.max_wait = max_wait)
    }

    /// Sets how many requests may wait at once, for all keys together. Defaults to 10,000.
    ///
    /// A further request that would have to wait is denied at once. Its `Retry-After` counts those that wait
    /// before it. Without [`max_wait`](Self::max_wait) no request waits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_second(5), key::header("x-user-id"), MemoryStore::new())
    ///     .max_wait(Duration::from_secs(2))
    ///     .max_waiters(500);
    /// ```
    #[must_use]
    pub fn max_waiters(self, most: usize) -> Self {
        self.with(|config| config.max_waiters = most)
    }
}
