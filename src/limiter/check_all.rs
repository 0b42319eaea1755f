//! [`Limiter::check_all`]: one decision about several logs.

use super::Limiter;
use crate::error::StoreError;
use crate::key::Key;
use crate::window::{Check, Decision, LogCost};

impl Limiter {
    /// Decides on a request of `key` with a value, under a policy that counts
    /// [distinct](crate::Policy::distinct) values.
    ///
    /// Beside other policies it is [`LogCost::value`] in [`Limiter::check_all`]. A policy that counts something else
    /// ignores the value.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, StoreError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), StoreError> {
    /// let accounts = Policy::new("accounts").quota(Quota::per_hour(1)).distinct();
    /// let limiter = Limiter::new(accounts, MemoryStore::new());
    /// assert!(limiter.check_value("203.0.113.7", "alice").await?.is_admitted());
    /// assert!(limiter.check_value("203.0.113.7", "alice").await?.is_admitted());
    /// assert!(!limiter.check_value("203.0.113.7", "bob").await?.is_admitted());
    /// assert_eq!(limiter.peek("203.0.113.7").await?.remaining(), 0); // for another account
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide.
    pub async fn check_value(
        &self,
        key: impl Into<Key>,
        value: impl Into<Key>,
    ) -> Result<Decision, StoreError> {
        let mut check = Check::of(self.log(key).with_value(value));
        check.on_failure = self.on_failure;
        self.decide(check).await
    }

    /// Admits and counts one request under several policies, each with its own key. Either all logs
    /// record the request or none does.
    ///
    /// The policies replace that of the limiter. Each log is a policy and a key, where the request takes
    /// one place, or a policy, a key and a cost for a [budget](crate::Policy::budget), see [`LogCost`]. A policy may occur with several keys. If a
    /// policy and key occur twice, they count once, at the higher cost. Without any log the request is
    /// admitted.
    ///
    /// A cost of 0 takes nothing of that log, see [`Limiter::check_cost`].
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::check_cost`]. No cost may be above the limit of its own policy.
    /// [`StoreError::NoValue`] if a policy counts distinct values, and its log has none.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let sender = PolicyHandle::new(Policy::new("sender").quota(Quota::per_minute(100)).budget());
    /// let receiver = PolicyHandle::new(Policy::new("receiver").quota(Quota::per_minute(5)));
    /// let limiter = Limiter::new(&sender, MemoryStore::new());
    ///
    /// let decision = limiter.check_all([(&sender, "bank"), (&receiver, "receiver-17")]).await?;
    /// assert!(decision.is_admitted());
    ///
    /// // The sender pays for three parts. The receiver gets one message.
    /// let logs = [(&sender, "bank", 3), (&receiver, "receiver-17", 1)];
    /// assert!(limiter.check_all(logs).await?.is_admitted());
    /// assert_eq!(limiter.peek("bank").await?.remaining(), 96);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_all<L: Into<LogCost>>(
        &self,
        logs: impl IntoIterator<Item = L>,
    ) -> Result<Decision, StoreError> {
        let mut check = Check::with_costs(logs);
        check.on_failure = self.on_failure;
        self.decide(check).await
    }
}
