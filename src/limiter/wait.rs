//! [`Limiter::until_admitted`]: waits until there is room.

use std::time::Duration;

use super::Limiter;
use crate::key::Key;
use crate::store::Permit;
use crate::waiting::{Bounds, WaitError, until_admitted};
use crate::window::{Admitted, Check, LogCost};

impl Limiter {
    /// Waits until a request of `key` is admitted, and counts it.
    ///
    /// The first check is sent at once. After a denial the caller sleeps for its
    /// [`retry_after`](crate::Denied::retry_after) and checks again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota, WaitError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), WaitError> {
    /// # let start = tokio::time::Instant::now();
    /// let limiter = Limiter::new(Quota::new(1, Duration::from_secs(600)), MemoryStore::new());
    /// limiter.until_admitted("bob").await?;
    /// limiter.until_admitted("bob").await?; // ten minutes later
    /// # assert_eq!(start.elapsed(), Duration::from_secs(600));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ## Behavior
    ///
    /// - **Order.** The callers that wait for one key are admitted in the order of their arrival, which
    ///   is when their future is first polled. A later one does not overtake them, whatever its cost.
    ///   What each does after its admission is in this order only if the callers see to it.
    ///   While no caller of a key waits, those that arrive at the same time send their first checks at
    ///   the same time.
    /// - **Extent.** The order holds in one process, for a limiter and its clones. The callers of other
    ///   processes, and [`Limiter::check`], take a place when they find one.
    /// - **Cost.** Only the first waiter of a key sends checks: when its place is free by time, and once
    ///   a second before that, because a replaced policy, a cancellation or a reset can free a place
    ///   too. So these are noticed within a second, and a thousand keys with waiters cost the store a
    ///   thousand checks a second. Each of them counts in the metrics as any other.
    /// - **Exactness.** A single waiter is admitted at the instant that the store has named, never before.
    ///   The timer of tokio counts whole milliseconds and rounds up, and a remote store adds a round
    ///   trip.
    /// - **Dropping.** If the caller drops the future, it leaves the queue, the next waiter goes on, and
    ///   no log has recorded the request. If a check is under way at that moment, a background task
    ///   cancels the request when its outcome arrives. Without a runtime the request may be counted.
    /// - **Bounds.** At most [`Limiter::max_waiters`] callers wait. [`Limiter::until_admitted_within`]
    ///   limits the length of a wait.
    /// - **Bans.** It waits for quotas only: the denial of a banned key is returned at once. Under a
    ///   policy with a [`Penalty`](crate::Penalty) a denied check can be a strike, also one of a waiter.
    /// - **Policies.** Each check uses the policy that is set when it is sent, see
    ///   [`PolicyHandle::set`](crate::PolicyHandle::set).
    ///
    /// A wait needs a tokio runtime with its timer. A future that is not polled holds up the callers
    /// behind it.
    ///
    /// # Errors
    ///
    /// [`WaitError::Denied`] if the key is banned, [`WaitError::TooManyWaiters`], and
    /// [`WaitError::Store`] if the store could not decide. Such an error ends the wait of this caller
    /// only. Its place is lost: if it waits again, it is behind the others.
    pub async fn until_admitted(&self, key: impl Into<Key>) -> Result<Admitted, WaitError> {
        self.wait(key.into(), None).await
    }

    /// Waits until a request of `key` is admitted, but not for longer than `max_wait`.
    ///
    /// It does not wait first: the denial is returned as soon as it is known that the wait would be too
    /// long. That is the case if the place is free too late by time alone, counting from the last denial
    /// of the first waiter and as if each caller before this one took its places: with `n` places before
    /// it and a quota of `limit` requests in a window, it has its place no earlier than `n / limit`
    /// windows, rounded down, after the first waiter has room. The [`retry_after`](crate::Denied::retry_after)
    /// of the denial is that time.
    ///
    /// The bound holds for the wait, which may be a twentieth longer: each caller is admitted a little after its place is
    /// free, and those behind it later by as much. A check that is under way at its end is completed, and can still
    /// admit the request. A bound of zero makes it a [`Limiter::check`] that does not overtake the
    /// callers that wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota, WaitError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), WaitError> {
    /// let limiter = Limiter::new(Quota::per_minute(1), MemoryStore::new());
    /// let most = Duration::from_secs(5);
    /// limiter.until_admitted_within("bob", most).await?;
    /// match limiter.until_admitted_within("bob", most).await {
    ///     Err(WaitError::Denied(denied)) => assert_eq!(denied.retry_after().as_secs(), 60), // at once
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WaitError::Denied`] if the wait would be longer than `max_wait`, and the errors of
    /// [`Limiter::until_admitted`].
    pub async fn until_admitted_within(
        &self,
        key: impl Into<Key>,
        max_wait: Duration,
    ) -> Result<Admitted, WaitError> {
        self.wait(key.into(), Some(max_wait)).await
    }

    /// Waits until a request is admitted under one or several policies, each with its own key and cost, but not for
    /// longer than `max_wait` if there is one. Either all logs record the request or none does, see
    /// [`Limiter::check_all`].
    ///
    /// `logs` returns the logs of the request, each with a policy, a key and maybe a cost. It is called for each
    /// check, so that a policy that was replaced meanwhile counts. A request of a high cost holds up those of a lower
    /// cost behind it.
    ///
    /// A caller waits for the log that denies it for longest, in the order of arrival of all that wait for
    /// that log, whatever their other logs are. Those that find room in all of their logs pass it. If another
    /// log denies it once it is the first there, it waits for that one, where it is again before all that
    /// arrived later. Meanwhile others may take the places of the first one, so a caller of several busy
    /// logs that come free at different instants can wait for long: give it a bound.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota, WaitError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), WaitError> {
    /// let sender = PolicyHandle::new(Policy::new("sender").quota(Quota::per_minute(100)).budget());
    /// let receiver = PolicyHandle::new(Policy::new("receiver").quota(Quota::per_minute(3)).budget());
    /// let limiter = Limiter::new(&sender, MemoryStore::new());
    ///
    /// // Two parts for a receiver who gets three a minute.
    /// let logs = || [(&sender, "bank", 2), (&receiver, "receiver-17", 2)];
    /// limiter.until_admitted_all(logs, None).await?;
    /// # let start = tokio::time::Instant::now();
    /// limiter.until_admitted_all(logs, Some(Duration::from_secs(60))).await?; // a minute later
    /// # assert_eq!(start.elapsed(), Duration::from_secs(60));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::until_admitted_within`].
    pub async fn until_admitted_all<I>(
        &self,
        logs: impl Fn() -> I,
        max_wait: Option<Duration>,
    ) -> Result<Admitted, WaitError>
    where
        I: IntoIterator<Item: Into<LogCost>>,
    {
        let check = || {
            let mut check = Check::with_costs(logs());
            check.on_failure = self.on_failure;
            check
        };
        self.wait_for(check, max_wait).await
    }

    /// Sets how many callers may wait at once, for all keys together. Defaults to 10,000.
    ///
    /// A further caller that would have to wait gets [`WaitError::TooManyWaiters`] at once. Clones of a
    /// limiter share the waiters, and each has its own cap.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_minute(5), MemoryStore::new()).max_waiters(100);
    /// ```
    #[must_use]
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.max_waiters = most;
        self
    }

    /// Waits for a place under a policy that counts requests [in flight](crate::Policy::in_flight), and holds it
    /// until the [`Permit`] is dropped.
    ///
    /// With a `max_wait` of zero it does not wait. Otherwise the callers of this process get their places in the order of
    /// their arrival, and the first one of each key looks 20 times a second whether a place is free.
    ///
    /// Under a policy that counts requests it is [`Limiter::until_admitted_within`]: the permit holds nothing, and the
    /// request counts for a window.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, WaitError};
    ///
    /// # async fn export(_tenant: &str) {}
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), WaitError> {
    /// let exports = Policy::new("exports").quota(Quota::new(2, Duration::from_secs(30))).in_flight();
    /// let limiter = Limiter::new(exports, MemoryStore::new());
    ///
    /// let permit = limiter.acquire("tenant-7", Duration::from_secs(60)).await?;
    /// export("tenant-7").await; // for hours, if need be
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WaitError::Denied`] if no place came free in time: its [`retry_after`](crate::Denied::retry_after) says
    /// nothing, see [`Denied::has_known_wait`](crate::Denied::has_known_wait). And the other errors of
    /// [`Limiter::until_admitted`].
    pub async fn acquire(
        &self,
        key: impl Into<Key>,
        max_wait: Duration,
    ) -> Result<Permit, WaitError> {
        Ok(self.hold(&self.wait(key.into(), Some(max_wait)).await?))
    }

    /// Holds the places that an admitted request has under policies that count requests
    /// [in flight](crate::Policy::in_flight), until the [`Permit`] is dropped. Without it they are free after a
    /// lease.
    ///
    /// It is for requests with several logs; [`Limiter::acquire`] serves one. What the request has in other logs stays
    /// there for its window. Call it right after the admission, and once: the places are given back with the
    /// first permit that is dropped. It needs a tokio runtime, whose task renews the leases.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, PolicyHandle, Quota, StoreError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), StoreError> {
    /// let user = PolicyHandle::new(Policy::new("user").quota(Quota::per_hour(20)));
    /// let jobs = Policy::new("jobs").quota(Quota::new(1, Duration::from_secs(30))).in_flight();
    /// let jobs = PolicyHandle::new(jobs);
    /// let limiter = Limiter::new(&user, MemoryStore::new());
    ///
    /// let logs = [(&user, "alice"), (&jobs, "tenant-7")];
    /// let decision = limiter.check_all(logs).await?;
    /// let permit = decision.admitted().map(|admitted| limiter.hold(admitted));
    /// assert!(!limiter.check_all(logs).await?.is_admitted());
    /// drop(permit);
    /// assert!(limiter.check_all(logs).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, admitted: &Admitted) -> Permit {
        Permit::hold(&self.store, admitted.check()).unwrap_or_else(Permit::empty)
    }

    async fn wait(&self, key: Key, max_wait: Option<Duration>) -> Result<Admitted, WaitError> {
        self.wait_for(|| self.new_check(key.clone(), 1), max_wait).await
    }

    async fn wait_for(
        &self,
        check: impl Fn() -> Check,
        max_wait: Option<Duration>,
    ) -> Result<Admitted, WaitError> {
        let bounds = Bounds::new(max_wait.unwrap_or(Duration::MAX), self.max_waiters);
        let again = || Ok(check());
        Ok(until_admitted(&self.waiting, &self.store, check(), again, bounds).await?)
    }
}
