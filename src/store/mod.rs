//! [`Store`]: where the windows are kept.
//!
//! Applications choose one and hand it to a [`Limiter`](crate::Limiter) or a
//! [`SlidingWindowLayer`](crate::SlidingWindowLayer); only who writes a store needs the traits.

#[cfg(all(test, feature = "memory", feature = "redis"))]
mod agreement;
mod bans;
mod deny_cache;
#[cfg(feature = "memory")]
pub(crate) mod expiring;
#[cfg(feature = "redis")]
mod failover;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::future::Future;
use std::hash::{Hash, Hasher};
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
pub use crate::penalty::Struck;
use crate::policy::Policy;
use crate::report;
pub use crate::window::QuotaState;

pub use bans::BanStore;
pub use deny_cache::DenyCache;
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::{RedisServers, RedisStore, RedisStoreBuilder};

/// The highest weight of a request. Each place it takes is an entry of the log, written while
/// Redis does nothing else.
const HIGHEST_COST: u32 = 1024;

/// One window: a policy and the key it is kept for.
///
/// Two are equal if they are the same window: the same key under a policy of the same name,
/// whatever its quotas.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Partition {
    /// The policy, as it was when the decision began.
    pub policy: Arc<Policy>,
    /// Whose window it is.
    pub key: Key,
}

impl Partition {
    /// Names the window of a key under a policy.
    #[must_use]
    pub fn new(policy: Arc<Policy>, key: impl Into<Key>) -> Self {
        Self { policy, key: key.into() }
    }
}

impl PartialEq for Partition {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.shares_windows_with(&other.policy)
    }
}

impl Eq for Partition {}

impl Hash for Partition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.policy.window_name().hash(state);
        self.key.hash(state);
    }
}

/// The question put to a store: may this request pass all of these windows?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The request's identity, under which it is counted once.
    pub id: Uuid,
    /// The request's weight: how many places it takes, 0 to 1024. Defaults to 1.
    pub cost: u32,
    /// The windows, no two the same. At least one.
    pub partitions: SmallVec<[Partition; 1]>,
    /// Whether a check of the same identity may have been counted already.
    pub repeated: bool,
    /// Whether [`QuotaState::reset_us`] is wanted.
    pub wants_reset: bool,
    /// Whether [`Verdict::at_us`] is wanted.
    pub wants_stamp: bool,
    /// Whether requests under these policies may be cancelled, by this process or another, so
    /// that more than time can make room.
    pub cancellable: bool,
    /// What becomes of the request if the store can't decide. Defaults to `Local` with one
    /// instance.
    pub on_failure: FailurePolicy,
}

impl Check {
    /// Creates the question for a new request.
    ///
    /// A window given twice is asked for once, under the quotas of both.
    pub fn new(partitions: impl IntoIterator<Item = Partition>) -> Self {
        let mut distinct: SmallVec<[Partition; 1]> = SmallVec::new();
        for partition in partitions {
            match distinct.iter_mut().find(|other| **other == partition) {
                Some(other) => other.policy = other.policy.merged(&partition.policy),
                None => distinct.push(partition),
            }
        }
        Self {
            id: Uuid::new_v4(),
            cost: 1,
            partitions: distinct,
            repeated: false,
            wants_reset: false,
            wants_stamp: false,
            cancellable: false,
            on_failure: FailurePolicy::default(),
        }
    }

    /// Returns the length of the longest full quota of one partition, given the states of all; zero
    /// if none is full.
    pub(crate) fn longest_full_us(&self, place: usize, states: &[QuotaState]) -> u64 {
        let before = self.partitions[..place].iter().map(|it| it.policy.judged().len());
        let own = states[before.sum()..].iter();
        let quotas = self.partitions[place].policy.quotas().iter();
        let full = quotas.zip(own).filter(|(_, state)| state.wait_us > 0);
        full.map(|(quota, _)| quota.window_us()).max().unwrap_or(0)
    }

    /// Tells whether every enforced quota has room, given the states of all.
    pub(crate) fn fits(&self, mut states: &[QuotaState]) -> bool {
        let mut fits = true;
        for partition in &self.partitions {
            let (own, rest) = states.split_at(partition.policy.judged().len());
            let enforced = &own[..partition.policy.quotas().len()];
            fits &= enforced.iter().all(|state| state.wait_us == 0);
            states = rest;
        }
        fits
    }

    /// Returns the question for one of so many processes that each decide alone.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(&self, instances: NonZeroU32) -> Self {
        let mut check = self.clone();
        if instances > NonZeroU32::MIN {
            for partition in &mut check.partitions {
                // A request that could pass must not become impossible.
                partition.policy = partition.policy.shared_among(instances, self.cost);
            }
        }
        check
    }

    /// Replaces a failure by an admission if the failure policy is `Open`.
    pub(crate) fn or_open(
        &self,
        answer: Result<Verdict, StoreError>,
    ) -> Result<Verdict, StoreError> {
        match answer {
            Err(error) if self.on_failure == FailurePolicy::Open && !error.is_impossible() => {
                let judged = self.partitions.iter().flat_map(|partition| partition.policy.judged());
                let states = judged.map(|quota| QuotaState::new(quota.limit(), 0, 0)).collect();
                let mut verdict = Verdict::new(true, None, states);
                verdict.decided_by = DecidedBy::FailurePolicy;
                Ok(verdict)
            }
            Err(error) => {
                if !error.is_impossible() {
                    report::refused_without_the_store();
                }
                Err(error)
            }
            answer => answer,
        }
    }

    /// Returns an error if the request could never pass.
    pub(crate) fn possible(&self) -> Result<(), StoreError> {
        if self.cost > HIGHEST_COST {
            return Err(StoreError::CostTooHigh { cost: self.cost, most: HIGHEST_COST });
        }
        let quotas = self.partitions.iter().flat_map(|partition| partition.policy.quotas());
        match quotas.map(|quota| quota.limit()).min() {
            Some(limit) if self.cost > limit => {
                Err(StoreError::CostAboveLimit { cost: self.cost, limit })
            }
            _ => Ok(()),
        }
    }
}

/// A store's answer to a [`Check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether every window recorded the request; else none did.
    pub admitted: bool,
    /// When, on the store's clock, in microseconds since the store's epoch. A store may leave it
    /// out if it is not wanted.
    pub at_us: Option<u64>,
    /// How each quota stands after the decision: partition by partition, the policy's quotas and
    /// then its candidates. The wait of a candidate is as it was before.
    pub states: SmallVec<[QuotaState; 2]>,
    /// How the key of each partition stands whose policy has a penalty, if it is banned or this
    /// request was a strike.
    pub bans: SmallVec<[BanState; 0]>,
    /// Who decided. Defaults to the store.
    pub decided_by: DecidedBy,
}

/// How a key stands with a policy's [`Penalty`](crate::Penalty).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanState {
    /// Which of the check's partitions it is.
    pub partition: usize,
    /// How long the ban goes on, in microseconds. Zero if there is none.
    pub wait_us: u64,
    /// What this request was to it.
    pub struck: Struck,
}

impl BanState {
    /// Creates a state from its parts, in their order.
    #[must_use]
    pub const fn new(partition: usize, wait_us: u64, struck: Struck) -> Self {
        Self { partition, wait_us, struck }
    }

    /// Tells whether there is something to tell.
    pub(crate) fn matters(&self) -> bool {
        self.wait_us > 0 || self.struck != Struck::No
    }
}

/// Who decided on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store, from the windows that all who use it share.
    #[default]
    Store,
    /// A window in this process, for the store did not answer or has yet to be told of what was
    /// decided here before.
    LocalWindow,
    /// The failure policy `Open`: the request was admitted and not counted.
    FailurePolicy,
}

impl Verdict {
    /// Creates an answer.
    #[must_use]
    pub fn new(admitted: bool, at_us: Option<u64>, states: SmallVec<[QuotaState; 2]>) -> Self {
        let bans = SmallVec::new();
        Self { admitted, at_us, states, bans, decided_by: DecidedBy::Store }
    }
}

/// Keeps the windows and decides, atomically, whether a request fits into all of its own.
///
/// A store is a cheap handle: clones share the windows. It must keep the crate's promises: never
/// more than `limit` admissions in any `(t - window, t]`, no trace of a denied request, and a
/// request with the same [`Check::id`] counted once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of windows",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait Store: Send + Sync + 'static {
    /// Records the request in all of its windows if it fits into all of them, else in none.
    fn admit(&self, check: &Check) -> StoreFuture<Verdict>;

    /// Says what [`Store::admit`] would answer, recording nothing.
    fn peek(&self, check: &Check) -> StoreFuture<Verdict>;

    /// Removes an admitted request from its windows, and nothing else.
    ///
    /// Says whether it was still there.
    fn cancel(&self, check: &Check) -> StoreFuture<bool>;

    /// Records a request that was admitted elsewhere, `age` ago, whatever the quotas say.
    ///
    /// One that is there already has its stamp raised, never lowered. Windows it has left already
    /// stay as they are.
    fn restore(&self, check: &Check, age: Duration) -> StoreFuture<()>;

    /// Empties windows.
    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        (**self).admit(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        (**self).peek(check)
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        (**self).cancel(check)
    }

    fn restore(&self, check: &Check, age: Duration) -> StoreFuture<()> {
        (**self).restore(check, age)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        (**self).reset(partitions)
    }
}

/// The answer of a store, now or later.
///
/// An answer from memory costs no allocation.
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(Answer<T>);

enum Answer<T> {
    Now(Option<Result<T, StoreError>>),
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> StoreFuture<T> {
    /// Creates an answer that is there already.
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Answer::Now(Some(answer)))
    }

    /// Returns the answer if it is there already, else what has to be waited for.
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            Answer::Now(Some(answer)) => Ok(answer),
            answer => Err(Self(answer)),
        }
    }

    /// Shows the answer to `look` when it is there, unless it is an error; drops `look` in any case.
    pub(crate) fn inspect(self, look: impl FnOnce(&T) + Send + 'static) -> Self
    where
        T: Send + 'static,
    {
        match self.0 {
            Answer::Now(Some(Ok(answer))) => {
                look(&answer);
                Self::ready(Ok(answer))
            }
            Answer::Now(answer) => Self(Answer::Now(answer)),
            Answer::Later(answer) => Self::later(async move {
                let answer = answer.await?;
                look(&answer);
                Ok(answer)
            }),
        }
    }

    /// Creates an answer that has to be waited for.
    pub fn later(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(Answer::Later(Box::pin(answer)))
    }
}

// Nothing is pinned structurally: the answer moves, the boxed future does not.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answer::Now(answer) => Poll::Ready(answer.take().unwrap_or_else(|| {
                Err(StoreError::Protocol { message: "polled after the answer".to_owned() })
            })),
            Answer::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> std::fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Answer::Now(_) => "StoreFuture(ready)",
            Answer::Later(_) => "StoreFuture(pending)",
        })
    }
}
