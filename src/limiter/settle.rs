//! [`Limiter::settle`]: the real cost of an admitted request, and its cancellation.

use super::Limiter;
use crate::error::StoreError;
use crate::window::Admitted;

impl Limiter {
    /// Cancels an admission, as if the request had never been made.
    ///
    /// It removes the entries of this request and no others. Returns whether there were any: there are
    /// none if the request was cancelled before or has left the longest window.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn cancel(&self, admitted: &Admitted) -> Result<bool, StoreError> {
        self.store.cancel(admitted.check()).await
    }

    /// Sets how many places an admitted request takes, once its real cost is known.
    ///
    /// A request whose cost is known only afterwards, such as the tokens of a language model, reserves
    /// an estimate with [`Limiter::check_cost`] and is settled at what it used:
    ///
    /// - Below the estimate, places become free at once. At 0 the request is cancelled.
    /// - Above the estimate, the request takes more places than it was admitted for, also above the
    ///   limit. It is not denied for that, but later requests wait for these places too. Estimate high
    ///   if the limit must hold at every instant.
    /// - All places count from the time of the admission and leave the window together.
    /// - It is atomic over all logs of the request, as the check is. On a Redis Cluster, keys in
    ///   different slots are settled one after another.
    /// - It is the same in every log, also after [`Limiter::check_all`] with different costs. A log where
    ///   the cost was 0 stays without the request. [`Limiter::settle_policy`] settles some of the logs.
    /// - The last call counts. To repeat a call changes nothing, so a call whose result was lost can be
    ///   repeated.
    ///
    /// Returns whether the request had a place to settle. It has none, and nothing happens, if it has
    /// left the longest window, was cancelled, or was not counted. If the store fails and the failure
    /// policy is [`FailurePolicy::Local`](crate::FailurePolicy::Local), the log in this process is settled, and the store later.
    ///
    /// The handler behind a [`SlidingWindowLayer`](crate::SlidingWindowLayer) finds the admission in the
    /// [`Decision`](crate::Decision) among the extensions of the request. Any limiter with the same store can settle it.
    ///
    /// # Errors
    ///
    /// [`StoreError::CostTooHigh`] if `actual` is above 1024: nothing has changed then. Any other
    /// [`StoreError`] if the store fails.
    ///
    /// ```
    /// use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// // 100,000 tokens a minute, in places of a thousand tokens.
    /// let tokens = Limiter::new(Quota::per_minute(100), MemoryStore::new());
    ///
    /// if let Decision::Admitted(admitted) = tokens.check_cost("alice", 8).await? {
    ///     let used: u32 = 2_400; // as the model reports
    ///     tokens.settle(&admitted, used.div_ceil(1000)).await?;
    /// }
    /// assert_eq!(tokens.peek("alice").await?.remaining(), 97);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle(&self, admitted: &Admitted, actual: u32) -> Result<bool, StoreError> {
        self.store.settle(admitted.check(), actual).await
    }

    /// Sets how many places an admitted request takes under one of its policies, given by its name. It is
    /// [`Limiter::settle`] for a request that has another cost under other policies.
    ///
    /// The logs of other policies are not changed.
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::settle`], and [`StoreError::UnknownPolicy`] with the names of the policies
    /// that the request was checked under, if none has this name. Nothing has changed then.
    ///
    /// ```
    /// use tower_sliding_window::{Decision, Limiter, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let tokens = PolicyHandle::new(Policy::new("tokens").quota(Quota::per_minute(100)));
    /// let calls = PolicyHandle::new(Policy::new("calls").quota(Quota::per_minute(20)));
    /// let limiter = Limiter::new(&tokens, MemoryStore::new());
    ///
    /// let logs = [(&tokens, "alice", 8), (&calls, "alice", 1)];
    /// if let Decision::Admitted(admitted) = limiter.check_all(logs).await? {
    ///     limiter.settle_policy(&admitted, "tokens", 3).await?;
    /// }
    /// assert_eq!(limiter.peek("alice").await?.remaining(), 97);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle_policy(
        &self,
        admitted: &Admitted,
        policy: &str,
        actual: u32,
    ) -> Result<bool, StoreError> {
        let check = admitted.check();
        let part = check.part(|index| check.logs[index].policy.name() == policy);
        if part.logs.is_empty() {
            let mut policies: Vec<String> = Vec::new();
            for log in &check.logs {
                if policies.iter().all(|name| name != log.policy.name()) {
                    policies.push(log.policy.name().to_owned());
                }
            }
            return Err(StoreError::UnknownPolicy { name: policy.to_owned(), policies });
        }
        self.store.settle(&part, actual).await
    }
}
