//! [`Limiter::settle`]: the real cost of an admitted request, and its cancellation.

use super::Limiter;
use crate::error::StoreError;
use crate::window::Admitted;

impl Limiter {
    /// Cancels an admission, as if the request had never been made.
    ///
    /// It removes the entry of this request and no other. Returns whether there was one: there is none if the
    /// request was cancelled before or has left the longest window.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn cancel(&self, admitted: &Admitted) -> Result<bool, StoreError> {
        self.store.settle(admitted.check(), 0).await
    }

    /// Sets what an admitted request takes of its budgets, once its real cost is known.
    ///
    /// A request whose cost is known only afterwards, such as the tokens of a language model, reserves
    /// an estimate with [`Limiter::check_cost`] and is settled at what it used:
    ///
    /// - Below the estimate, the rest is free at once. At 0 the request is cancelled.
    /// - Above the estimate, the request takes more than it was admitted for, also above the limit. It is not
    ///   denied for that, but later requests wait for it too. Estimate high if the limit must hold at every
    ///   instant.
    /// - It counts from the time of the admission.
    /// - It is atomic over all logs of the request, as the check is. On a Redis Cluster, keys in
    ///   different slots are settled one after another.
    /// - It is the same in every budget, also after [`Limiter::check_all`] with different costs. A log where
    ///   the cost was 0 stays without the request, and one that is no budget counts one request until it is
    ///   settled at 0. [`Limiter::settle_policy`] settles some of the logs.
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
    /// A [`StoreError`] if the store fails.
    ///
    /// ```
    /// use tower_sliding_window::{Decision, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let tokens = Policy::new("tokens").quota(Quota::per_minute(100_000)).budget();
    /// let tokens = Limiter::new(tokens, MemoryStore::new());
    ///
    /// if let Decision::Admitted(admitted) = tokens.check_cost("alice", 8_000).await? {
    ///     tokens.settle(&admitted, 2_400).await?; // as the model reports
    /// }
    /// assert_eq!(tokens.peek("alice").await?.remaining(), 97_600);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle(&self, admitted: &Admitted, actual: u32) -> Result<bool, StoreError> {
        self.store.settle(admitted.check(), actual).await
    }

    /// Sets what an admitted request takes under one of its policies, given by its name. It is
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
    /// let tokens = PolicyHandle::new(Policy::new("tokens").quota(Quota::per_minute(100)).budget());
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
