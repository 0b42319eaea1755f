//! [`Limiter`]: rate limiting without HTTP.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::offenders::TopOffenders;
use crate::policy::{Policy, PolicyHandle};
use crate::store::{PendingCheck, Permit, Store, admit_if_open, conclude};
use crate::waiting::{Bounds, DEFAULT_MAX_WAITERS, WaitError, WaitQueues, until_admitted};
use crate::window::{Admitted, Check, DecidedBy, Decision, Explanation, LogCost, LogId, Usage};

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
#[must_use]
pub struct Limiter {
    policy: PolicyHandle,
    store: Arc<dyn Store>,
    on_failure: FailurePolicy,
    waiting: Arc<WaitQueues>,
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
    /// If the policy has no quota or too many. [`PolicyHandle::try_new`] returns an error instead.
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, store: impl Store) -> Self {
        Self {
            policy: policy.into(),
            store: Arc::new(store),
            on_failure: FailurePolicy::default(),
            waiting: Arc::default(),
            max_waiters: DEFAULT_MAX_WAITERS,
            offenders: None,
            cost_reported: Arc::default(),
        }
    }

    /// Sets what happens to a request if the store can't decide.
    ///
    /// Defaults to [`FailurePolicy::Local`] with one instance.
    pub fn failure_policy(mut self, on_failure: FailurePolicy) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets how many callers may wait at once, for all keys together. Defaults to 10,000.
    ///
    /// A further caller that would have to wait gets [`WaitError::TooManyWaiters`] at once. Clones of a
    /// limiter share the waiters, and each has its own cap.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.max_waiters = most;
        self
    }

    /// Sets where the keys of denied requests are counted. Defaults to nowhere.
    pub fn top_offenders(mut self, offenders: &TopOffenders) -> Self {
        self.offenders = Some(offenders.clone());
        self
    }

    /// Admits and counts one request of `key`, or denies it without a trace in the log.
    ///
    /// A key is made from text, bytes, a number, an address or a UUID. If the caller drops the future before it is ready, the
    /// request may have been counted. Places [in flight](crate::Policy::in_flight), which nobody would give back, come free.
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

    /// Admits and counts one request under several policies, each with its own key. Either all logs
    /// record the request or none does.
    ///
    /// The policies replace that of the limiter. Each log is a policy and a key, where the request takes
    /// one place, or a policy, a key and a cost for a [budget](crate::Policy::budget), see [`LogCost`]. A policy may occur
    /// with several keys. If a policy and key occur twice, they count once, at the higher cost. A cost of 0 takes nothing of
    /// that log. Without any log the request is admitted.
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
    /// // The sender pays for three parts. The receiver gets one message.
    /// let logs = [(&sender, "bank", 3), (&receiver, "receiver-17", 1)];
    /// assert!(limiter.check_all(logs).await?.is_admitted());
    /// assert_eq!(limiter.peek("bank").await?.remaining(), 97);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_all<L: Into<LogCost>>(
        &self,
        logs: impl IntoIterator<Item = L>,
    ) -> Result<Decision, StoreError> {
        self.decide(Check::with_costs(logs)).await
    }

    /// Decides on a request of `key` with a value, under a policy that counts
    /// [distinct](crate::Policy::distinct) values. A policy that counts something else ignores the value.
    ///
    /// Beside other policies it is [`LogCost::value`] in [`Limiter::check_all`]; the guide has an
    /// [example](crate::docs::recipes::accounts_per_address#without-a-layer).
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide.
    pub async fn check_value(
        &self,
        key: impl Into<Key>,
        value: impl Into<Key>,
    ) -> Result<Decision, StoreError> {
        self.decide(Check::new([self.log(key).with_value(value)])).await
    }

    /// Waits until a request of `key` is admitted, and counts it.
    ///
    /// The first check is sent at once. After a denial the caller sleeps for its
    /// [`retry_after`](crate::Denied::retry_after) and checks again. [The guide](crate::docs::waiting) has examples.
    ///
    /// - **Order.** The callers that wait for one key, for this limiter and its clones, are admitted in the order in which
    ///   their futures were first polled. A later one does not overtake them, whatever its cost. Those that come while
    ///   nobody waits, and under a policy that counts [distinct](Policy::distinct) values all, send their first checks at
    ///   once. [`Limiter::check`], and the callers of other processes, take a place when they find one.
    /// - **Cost.** Only the first waiter of a key sends checks: when its place is free by time, and once a second before that,
    ///   because a replaced policy, a cancellation or a reset can free a place too. Each counts in the metrics as any other.
    /// - **Exactness.** A single waiter is admitted at the instant that the store has named, never before. The timer of tokio
    ///   rounds up to whole milliseconds, and a remote store adds a round trip.
    /// - **Dropping.** A caller that drops the future leaves the queue, and no log has recorded the request. If a check is
    ///   under way, a background task cancels it when its outcome arrives. Without a runtime it may be counted.
    /// - **Bounds.** At most [`Limiter::max_waiters`] callers wait. [`Limiter::until_admitted_within`] limits the length of a
    ///   wait.
    /// - **Bans.** The denial of a banned key is returned at once. Under a policy with a [`Penalty`](crate::Penalty) a denied
    ///   check can be a strike, also one of a waiter.
    ///
    /// A wait needs a tokio runtime with its timer. A future that is not polled holds up the callers behind it.
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
    /// The request is denied as soon as its wait is known to be too long, judged by the last denial of the first
    /// waiter. Behind waiters that take `n` places of a quota of `limit` requests in a window, a request has room no
    /// earlier than `n / limit` windows, rounded down, after the first one. The
    /// [`retry_after`](crate::Denied::retry_after) of the denial may be up to a window longer, because nobody knows how
    /// the places of a full log are spread.
    ///
    /// The wait may be a twentieth longer than its bound: each caller is admitted a little after its place is
    /// free, and those behind it later by as much. A check that is under way at its end is completed, and can still
    /// admit the request. A bound of zero makes it a [`Limiter::check`] that does not overtake the callers that wait.
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
    /// [`Limiter::check_all`]. The guide has an [example](crate::docs::waiting#several-logs).
    ///
    /// `logs` returns the logs of the request. It is called for each check, so that a policy that was replaced meanwhile
    /// counts. A request of a high cost holds up those of a lower cost behind it.
    ///
    /// A caller waits for the log with the longest wait, in the order of arrival of all that wait for that log, whatever their
    /// other logs are. Those that find room in all of their logs pass it. If another log denies it once it is the first there,
    /// it waits for that one, and keeps its place in the order of arrival. Meanwhile others may take the places of the first
    /// log, so a caller of several busy logs that come free at different instants can wait for long: give it a bound.
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
        self.wait_for(|| Check::with_costs(logs()), max_wait).await
    }

    /// Waits for a place under a policy that counts requests [in flight](crate::Policy::in_flight), and holds it
    /// until the [`Permit`] is dropped. The guide has an [example](crate::docs::recipes::concurrent_requests#jobs).
    ///
    /// With a `max_wait` of zero it does not wait. Otherwise the callers of this process get their places in the order of
    /// their arrival, and the first one of each key looks 20 times a second whether a place is free.
    ///
    /// Under a policy that counts requests it is [`Limiter::until_admitted_within`]: the permit holds nothing, and the
    /// request counts for a window.
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
    /// It is for [requests with several logs](crate::docs::recipes::concurrent_requests#jobs); [`Limiter::acquire`] serves
    /// one. What the request has in other logs stays there for its window. Call it right after the admission, and once: the
    /// places are given back with the first permit that is dropped. To cancel the request, drop the permit too, or its next
    /// renewal takes the places again. It needs a tokio runtime with its timer, whose task renews the leases.
    pub fn hold(&self, admitted: &Admitted) -> Permit {
        Permit::hold(&self.store, admitted.check()).unwrap_or_else(Permit::empty)
    }

    /// Cancels an admission: its places are free again.
    ///
    /// It removes the entry of this request and no other. A [distinct](Policy::distinct) value stays seen. Returns
    /// whether there was one: there is none if the request was cancelled before or is older than the
    /// [retention](crate::Policy::retention).
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn cancel(&self, admitted: &Admitted) -> Result<bool, StoreError> {
        self.store.settle(admitted.check(), 0).await
    }

    /// Sets what an admitted request takes of its budgets, once its real cost is known. The guide has
    /// [examples](crate::docs::token_budgets).
    ///
    /// - Below what it has reserved, the rest is free at once. At 0 the request is cancelled.
    /// - Above, it takes more than it was admitted for, also above the limit. It is not denied for that, but later requests
    ///   wait for it too.
    /// - It counts from the time of the admission.
    /// - In process it is atomic over all logs of the request, as the check is. On Redis each log is settled by
    ///   itself, mostly in one call: another check may find some of them settled.
    /// - It is the same in every budget, also after [`Limiter::check_all`] with different costs. A log where
    ///   the cost was 0 stays without the request, and one that is no budget counts one request until it is
    ///   settled at 0. [`Limiter::settle_policy`] settles some of the logs.
    /// - The last call counts. To repeat a call, such as one whose result was lost, changes nothing.
    ///
    /// Returns whether the request had a place to settle. It has none, and nothing happens, if it is
    /// older than the [retention](crate::Policy::retention), was cancelled, or was not counted. If the store fails and the
    /// failure policy is [`FailurePolicy::Local`], the log in this process is settled, and the store later.
    ///
    /// The handler behind a [`SlidingWindowLayer`](crate::SlidingWindowLayer) finds the admission in the
    /// [`Decision`] among the extensions of the request. Any limiter with the same store can settle it.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn settle(&self, admitted: &Admitted, actual: u32) -> Result<bool, StoreError> {
        self.store.settle(admitted.check(), actual).await
    }

    /// Sets what an admitted request takes under one of its policies, given by its name. It is
    /// [`Limiter::settle`] for a request that has another cost under other policies, whose logs are not changed.
    ///
    /// # Errors
    ///
    /// The errors of [`Limiter::settle`], and [`StoreError::UnknownPolicy`] with the names of the policies
    /// that the request was checked under, if none has this name. Nothing has changed then.
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

    /// Explains what a request of `key` would get now, and why: the admissions in the log, when each
    /// place comes free, which admission a denial waits for, the ban record, and what decides. The guide has an
    /// [example](crate::docs::why_denied#the-log-of-a-key).
    ///
    /// Nothing is counted, no log is kept for longer, and the result is not part of any metric. On Redis the log of a
    /// budget is tidied. It is for a person, not for each request: it lists up to 2,048 admissions of each quota.
    ///
    /// If the store does not reply, it explains what decides instead: with
    /// [`FailurePolicy::Local`] the log in this process, at the share of this process, and with
    /// [`FailurePolicy::Open`] an admission that is not counted. So does the log in this process until
    /// its decisions in an outage are written back.
    ///
    /// Under a policy that counts [distinct](crate::Policy::distinct) values, it is for a value that is not in the
    /// log, and the admissions are the values, by their hashes.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails and the failure policy is [`FailurePolicy::Closed`], and if a store in process is
    /// full and the key has no log, unless it is [`FailurePolicy::Open`]. A request would get the same error.
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
        check.ensure_cost_fits()?;
        match self.store.explain(&check).await {
            Err(error) if self.on_failure == FailurePolicy::Open && !error.is_mistake() => {
                let empty = Explanation::new(&check.logs[0], cost, Duration::ZERO, []);
                Ok(Explanation { decided_by: DecidedBy::FailurePolicy, ..empty })
            }
            explained => explained,
        }
    }

    /// Empties the log of `key`. Strikes and bans stay.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails. A [`RedisStore`](crate::RedisStore) has emptied the log of this
    /// process by then, but the log in Redis and those of other processes may be as before. Reset it again
    /// when Redis answers.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), StoreError> {
        self.store.reset(&self.log(key)).await
    }

    /// Returns the present policy.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.get()
    }

    fn log(&self, key: impl Into<Key>) -> LogId {
        LogId::new(self.policy.get(), key)
    }

    fn new_check(&self, key: impl Into<Key>, cost: u32) -> Check {
        let mut check = Check::new([self.log(key)]);
        (check.cost, check.on_failure) = (cost, self.on_failure);
        check
    }

    async fn decide(&self, mut check: Check) -> Result<Decision, StoreError> {
        check.on_failure = self.on_failure;
        check.ensure_admissible().inspect_err(|error| error.report_once(&self.cost_reported))?;
        let mut pending = PendingCheck::send(&self.store, check, false);
        let (check, outcome) = poll_fn(|cx| pending.poll(cx)).await;
        let decision = conclude(check, outcome, false);
        if let (Some(offenders), Ok(decision)) = (&self.offenders, &decision) {
            offenders.record(decision);
        }
        decision
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
        let check = || {
            let mut check = check();
            check.on_failure = self.on_failure;
            check
        };
        let again = || Ok(check());
        Ok(until_admitted(&self.waiting, &self.store, check(), again, bounds).await?)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy).finish_non_exhaustive()
    }
}
