//! What a key's log decides, and why.

use super::Limiter;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::window::Explanation;

impl Limiter {
    /// Explains what a request of `key` would get now, and why: the admissions in the log, when each
    /// place comes free, which admission a denial waits for, the ban record, and what decides.
    ///
    /// It reads and never writes: nothing is counted, no log is kept for longer, and the result is not
    /// part of any metric. It is for a person, not for each request: it lists up to 2,048 places of each
    /// quota.
    ///
    /// If the store does not reply, it explains what decides instead: with
    /// [`FailurePolicy::Local`] the log in this process, at the share of this process, and with
    /// [`FailurePolicy::Open`] an admission that is not counted. So does the log in this process until
    /// its decisions in an outage are written back.
    ///
    /// Under a policy that counts [distinct](crate::Policy::distinct) values, it is for a value that is not in the
    /// log, and the admissions are the values, by their hashes.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let limiter = Limiter::new(Quota::per_minute(1), MemoryStore::new());
    /// let decision = limiter.check("alice").await?;
    ///
    /// let explanation = limiter.explain("alice").await?;
    /// assert!(!explanation.admitted);
    /// let quota = &explanation.quotas[0];
    /// assert_eq!(quota.waits_for, decision.admitted().map(|admitted| admitted.id()));
    /// println!("{explanation}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails and the failure policy is [`FailurePolicy::Closed`]. A request
    /// would get the same error.
    pub async fn explain(&self, key: impl Into<Key>) -> Result<Explanation, StoreError> {
        self.explain_cost(key, 1).await
    }

    /// Explains what a request of `key` that takes `cost` places would get now. It is
    /// [`Limiter::explain`] with a cost.
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::explain`], and those of [`Limiter::check_cost`] for a cost that is too
    /// high.
    pub async fn explain_cost(
        &self,
        key: impl Into<Key>,
        cost: u32,
    ) -> Result<Explanation, StoreError> {
        let check = self.new_check(key, cost);
        check.ensure_possible()?;
        match self.store.explain(&check).await {
            Err(error) if self.on_failure == FailurePolicy::Open && !error.is_impossible() => {
                Ok(Explanation::not_counted(&check.logs[0], cost))
            }
            explained => explained?.pop().ok_or_else(|| StoreError::Protocol {
                message: "expected the explanation of a log".to_owned(),
            }),
        }
    }
}
