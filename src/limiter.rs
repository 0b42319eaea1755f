//! [`Limiter`]: rate limiting without HTTP.

mod check_all;
mod explain;
mod offenders;
mod settle;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::offenders::TopOffenders;
use crate::policy::{Policy, PolicyHandle};
use crate::store::{Store, admit_if_open, conclude};
use crate::waiting::{DEFAULT_MAX_WAITERS, Waiting};
use crate::window::{Check, Decision, LogId, Usage};

/// Limits requests of any kind: messages to a receiver, calls to a partner, jobs.
///
/// It is a cheap handle: clones share the policy and the store.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
/// let limiter = Limiter::new(Quota::new(2, Duration::from_secs(600)), MemoryStore::new());
///
/// match limiter.check("receiver-17").await? {
///     Decision::Admitted(admitted) => {
///         assert_eq!(admitted.remaining(), 1);
///         limiter.cancel(&admitted).await?; // it was not sent after all
///     }
///     Decision::Denied(denied) => println!("again in {:?}", denied.retry_after()),
/// }
/// assert_eq!(limiter.peek("receiver-17").await?.remaining(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    policy: PolicyHandle,
    store: Arc<dyn Store>,
    on_failure: FailurePolicy,
    waiting: Arc<Waiting>,
    max_waiters: usize,
    offenders: Option<TopOffenders>,
    /// Whether a cost that can never pass was already warned of.
    cost_reported: Arc<AtomicBool>,
}

impl Limiter {
    /// Creates a limiter that applies `policy` to every key.
    ///
    /// # Panics
    ///
    /// If the policy has no quota. [`PolicyHandle::try_new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, store: impl Store) -> Self {
        Self {
            policy: policy.into(),
            store: Arc::new(store),
            on_failure: FailurePolicy::default(),
            waiting: Arc::new(Waiting::new()),
            max_waiters: DEFAULT_MAX_WAITERS,
            offenders: None,
            cost_reported: Arc::default(),
        }
    }

    /// Sets what happens to a request if the store can't decide.
    ///
    /// Defaults to [`FailurePolicy::Local`] with one instance.
    ///
    /// ```
    /// use tower_sliding_window::{FailurePolicy, Limiter, MemoryStore, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_minute(5), MemoryStore::new())
    ///     .failure_policy(FailurePolicy::Closed);
    /// ```
    #[must_use]
    pub fn failure_policy(mut self, on_failure: FailurePolicy) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Admits and counts one request of `key`, or denies it without a trace in the log.
    ///
    /// If the caller drops the future before it is ready, the request may have been counted.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let limiter = Limiter::new(Quota::per_minute(5), MemoryStore::new());
    /// let address: IpAddr = "203.0.113.7".parse().unwrap();
    /// // A key is made from text, bytes, a number, an address or a UUID.
    /// if limiter.check(address).await?.is_admitted() {
    ///     assert_eq!(limiter.peek("203.0.113.7").await?.remaining(), 4);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide. [`StoreError::NoValue`] under a policy that counts
    /// [distinct](Policy::distinct) values: see [`Limiter::check_value`].
    pub async fn check(&self, key: impl Into<Key>) -> Result<Decision, StoreError> {
        self.decide(self.new_check(key, 1)).await
    }

    /// Admits a request that takes `cost` of a [budget](Policy::budget), or denies it.
    ///
    /// A cost of 0 takes nothing. Such a request is denied only if more than a limit is taken, or if the key is
    /// banned. A cost that is known only afterwards is settled with [`Limiter::settle`].
    ///
    /// # Errors
    ///
    /// [`StoreError::CostAboveLimit`] if the cost is above a limit, [`StoreError::NoBudget`] if it is above 1 and
    /// the policy is no budget, and any other [`StoreError`] if the store could not decide.
    pub async fn check_cost(&self, key: impl Into<Key>, cost: u32) -> Result<Decision, StoreError> {
        self.decide(self.new_check(key, cost)).await
    }

    /// Returns the state of the log of `key`, without counting a request.
    ///
    /// Under a policy that counts [distinct](Policy::distinct) values it is the state for a new value.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Usage, StoreError> {
        let mut check = self.new_check(key, 1);
        check.wants_reset = true;
        let outcome = self.store.peek(&check).await;
        let outcome = outcome.or_else(|error| admit_if_open(&check, error))?;
        Ok(Usage::new(check, outcome))
    }

    /// Empties the log of `key`. Strikes and bans stay.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails. A [`RedisStore`](crate::RedisStore) has emptied the log of this
    /// process by then, but the log in Redis and those of other processes may be as before. Reset it again
    /// when Redis answers.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), StoreError> {
        self.store.reset(&[self.log(key)]).await
    }

    /// Returns the present policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.get()
    }

    fn log(&self, key: impl Into<Key>) -> LogId {
        LogId::new(self.policy.get(), key)
    }

    fn new_check(&self, key: impl Into<Key>, cost: u32) -> Check {
        let mut check = Check::of(self.log(key));
        (check.cost, check.on_failure) = (cost, self.on_failure);
        check
    }

    async fn decide(&self, check: Check) -> Result<Decision, StoreError> {
        check.ensure_admissible().inspect_err(|error| error.report_once(&self.cost_reported))?;
        let outcome = self.store.admit(&check).await;
        let decision = conclude(check, outcome, false);
        if let (Some(offenders), Ok(decision)) = (&self.offenders, &decision) {
            offenders.record(decision);
        }
        decision
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy).finish_non_exhaustive()
    }
}
