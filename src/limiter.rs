//! [`Limiter`]: rate limiting without HTTP.

mod offenders;
mod explain;
mod queue;
mod wait;
mod wait_error;
mod waiting;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::wait_error::WaitError;
use self::waiting::Waiting;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::offenders::TopOffenders;
use crate::policy::{Policy, PolicyHandle};
use crate::store::{Store, admit_if_open, conclude};
use crate::window::{Admitted, Check, Decision, LogId, Usage, ensure_cost};

const DEFAULT_MAX_WAITERS: usize = 10_000;

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
    /// A [`StoreError`] if the store could not decide.
    pub async fn check(&self, key: impl Into<Key>) -> Result<Decision, StoreError> {
        self.decide(self.admission(self.log(key), 1)).await
    }

    /// Admits a request that takes `cost` places, or denies it.
    ///
    /// A cost of 0 takes no place. Such a request is denied only if the log holds more entries than a
    /// limit, or if the key is banned. A cost that is known only afterwards is settled with
    /// [`Limiter::settle`].
    ///
    /// # Errors
    ///
    /// [`StoreError::CostAboveLimit`] if the cost is above a limit, [`StoreError::CostTooHigh`] if it is
    /// above 1024, and any other [`StoreError`] if the store could not decide.
    pub async fn check_cost(&self, key: impl Into<Key>, cost: u32) -> Result<Decision, StoreError> {
        self.decide(self.admission(self.log(key), cost)).await
    }

    /// Admits and counts one request under several policies, each with its own key. Either all logs
    /// record the request or none does.
    ///
    /// The policies replace that of the limiter. A policy may occur with several keys. If a policy and
    /// key occur twice, they count once. Without any pair the request is admitted.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(5)));
    /// let ip = PolicyHandle::new(Policy::new("ip").quota(Quota::per_minute(100)));
    /// let limiter = Limiter::new(&user, MemoryStore::new());
    ///
    /// let decision = limiter.check_all([(&user, "alice"), (&ip, "192.0.2.7")]).await?;
    /// assert!(decision.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_all<P, K>(
        &self,
        pairs: impl IntoIterator<Item = (P, K)>,
    ) -> Result<Decision, StoreError>
    where
        P: Into<PolicyHandle>,
        K: Into<Key>,
    {
        self.check_all_cost(pairs, 1).await
    }

    /// Admits a request that takes `cost` places in the log of each policy and key, or denies it. It is
    /// [`Limiter::check_all`] with a cost, such as the parts of a long text message.
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::check_cost`]. The cost must not be above the limit of any of the
    /// policies.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let sender = PolicyHandle::new(Policy::new("sender").quota(Quota::per_minute(100)));
    /// let receiver = PolicyHandle::new(Policy::new("receiver").quota(Quota::per_minute(5)));
    /// let limiter = Limiter::new(&sender, MemoryStore::new());
    ///
    /// let logs = [(&sender, "bank"), (&receiver, "receiver-17")];
    /// assert!(limiter.check_all_cost(logs, 3).await?.is_admitted());
    /// assert!(!limiter.check_all_cost(logs, 3).await?.is_admitted());
    /// assert_eq!(limiter.peek("bank").await?.remaining(), 97);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_all_cost<P, K>(
        &self,
        pairs: impl IntoIterator<Item = (P, K)>,
        cost: u32,
    ) -> Result<Decision, StoreError>
    where
        P: Into<PolicyHandle>,
        K: Into<Key>,
    {
        let log = |(policy, key): (P, K)| LogId { policy: policy.into().get(), key: key.into() };
        self.decide(self.admission(pairs.into_iter().map(log).collect(), cost)).await
    }

    /// Returns the state of the log of `key`, without counting a request.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Usage, StoreError> {
        let mut check = self.new_check(self.log(key));
        check.wants_reset = true;
        let check = Arc::new(check);
        let outcome = self.store.peek(&check).await;
        let outcome = outcome.or_else(|error| admit_if_open(&check, error))?;
        Ok(Usage::new(check, outcome))
    }

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
    /// - The last call counts. To repeat a call changes nothing, so a call whose result was lost can be
    ///   repeated.
    ///
    /// Returns whether the request had a place to settle. It has none, and nothing happens, if it has
    /// left the longest window, was cancelled, or was not counted. If the store fails and the failure
    /// policy is [`FailurePolicy::Local`], the log in this process is settled, and the store later.
    ///
    /// The handler behind a [`SlidingWindowLayer`](crate::SlidingWindowLayer) finds the admission in the
    /// [`Decision`] among the extensions of the request. Any limiter with the same store can settle it.
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
        ensure_cost(actual).inspect_err(StoreError::report)?;
        self.store.settle(admitted.check(), actual).await
    }

    /// Empties the log of `key`. Strikes and bans stay.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), StoreError> {
        self.store.reset(&self.log(key)).await
    }

    /// Returns the present policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.get()
    }

    fn log(&self, key: impl Into<Key>) -> SmallVec<[LogId; 1]> {
        SmallVec::from_buf([LogId { policy: self.policy.get(), key: key.into() }])
    }

    fn new_check(&self, logs: SmallVec<[LogId; 1]>) -> Check {
        let mut check = Check::from_logs(logs);
        check.on_failure = self.on_failure;
        check
    }

    fn admission(&self, logs: SmallVec<[LogId; 1]>, cost: u32) -> Arc<Check> {
        let mut check = self.new_check(logs);
        check.cost = cost;
        check.wants_timestamp = true;
        Arc::new(check)
    }

    async fn decide(&self, check: Arc<Check>) -> Result<Decision, StoreError> {
        check.ensure_possible().inspect_err(StoreError::report)?;
        let outcome = self.store.admit(&check).await;
        let decision = conclude(check, outcome, false)?;
        if let Some(offenders) = &self.offenders {
            offenders.record(&decision);
        }
        Ok(decision)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy).finish_non_exhaustive()
    }
}
