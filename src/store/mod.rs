//! [`Store`]: where the windows are kept.
//!
//! Applications choose one and hand it to a [`Limiter`](crate::Limiter) or a
//! [`SlidingWindowLayer`](crate::SlidingWindowLayer); only who writes a store needs the traits.

#[cfg(all(test, feature = "memory", feature = "redis", feature = "contract"))]
mod agreement;
mod answer;
mod bans;
mod check;
#[cfg(feature = "contract")]
pub mod contract;
mod deny_cache;
#[cfg(feature = "memory")]
pub(crate) mod expiring;
#[cfg(feature = "redis")]
mod failover;
mod known;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod verdict;

use std::sync::Arc;

pub use answer::StoreFuture;
pub use bans::BanStore;
pub use check::{Check, Partition};
pub use deny_cache::DenyCache;
pub use known::{Admission, KnownBan, KnownLog, Restored};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::{RedisCommands, RedisScript, RedisServers, RedisStore, RedisStoreBuilder};
pub use verdict::{BanState, DecidedBy, QuotaState, Struck, Verdict};

/// Keeps the windows and decides, atomically, whether a request fits into all of its own.
///
/// A store is a cheap handle: clones share the windows. It must keep the crate's promises: never
/// more than `limit` admissions in any `(t - window, t]`, no trace of a denied request, and a
/// request with the same [`Check::id`] counted once.
///
/// Questions are shared, so that a store which answers later can keep one without a copy.
///
/// # Writing a store
///
/// The function `store::contract::holds`, with the feature `contract`, plays histories to a store
/// and compares each outcome with the exact algorithm. Call it in a test of your store; here it runs
/// on [`MemoryStore`]:
///
/// ```
/// # #[cfg(feature = "contract")]
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use tower_sliding_window::{MemoryStore, store::contract};
///
/// // Under `#[tokio::test(start_paused = true)]`.
/// contract::holds(&MemoryStore::new(), tokio::time::advance).await;
/// # });
/// ```
///
/// What an outcome holds, and what a store must know:
///
/// - **The log** of a [`Partition`] is found by [`Policy::log_name`](crate::Policy::log_name) and the
///   key's bytes. It is shared by all versions of a policy, whatever their quotas. It keeps an entry
///   for as long as the longest quota or candidate of the check's policy; an entry exactly that old
///   is out.
/// - **The outcome** is made with [`Verdict::new`]; [`Verdict::bans`] is filled in afterwards.
///   [`Verdict::states`] has one state for each quota: partition by partition in the check's order,
///   of each the policy's [`quotas`](crate::Policy::quotas) and then its
///   [`candidates`](crate::Policy::candidates). A full candidate denies nothing.
/// - **The states of an admission** count the request in, in `remaining` and `reset_us`. The states
///   of a denial and of a peek do not. `wait_us` is the time until there is room for the check's
///   cost, as it was before the request was recorded.
/// - **The cost** is how many entries of one timestamp and identity an admission adds. A cost of 0
///   adds none and needs no room.
/// - **A repeated check**, [`Check::repeated`], is looked for by its identity. If a log of the check
///   has it, the outcome is an admission with the timestamp that it has there, with all waits zero
///   and no bans; nothing is recorded. If not, it is decided as a new one.
/// - **A cancellation** removes all entries of the identity, and says whether a log had one that had
///   not left its longest window.
/// - **A reset** empties the logs. Strikes and bans stay.
/// - **A restore** records the admissions of a [`KnownLog`] at the store's time less their age, and
///   counts the entries that were missing in [`Restored::added`]. An identity that is there already
///   is not added again: its timestamp is raised to the later one, unless the admission is
///   [`confirmed`](Admission::confirmed). A known ban is imposed for as long as it remains, unless
///   one stands that ends as late; it takes the key no rung up.
///
/// ## Penalties
///
/// A policy may have a [`Penalty`](crate::Penalty), see
/// [`Policy::penalty_for_strikes`](crate::Policy::penalty_for_strikes). A store decides on it in the
/// same atomic step as on the logs:
///
/// - A key that is banned is denied, whatever its log says. The denial is no strike.
/// - A denial by a full quota of the policy is a strike, unless an earlier strike is younger than the
///   longest quota that was full then. A peek is none. An identity counts as one strike.
/// - When the last [`strikes`](crate::Penalty::strikes) lie within their time, they are forgotten and
///   the key is banned, for the next of [`Penalty::ban_lengths`](crate::Penalty::ban_lengths) for the
///   check's identity; the last one repeats. For each
///   [`Penalty::decay_time`](crate::Penalty::decay_time) since the end of its ban, a key comes down a
///   rung before it is banned again.
/// - [`Verdict::bans`] has a [`BanState`] for each partition, in the check's order, that is banned
///   or whose request was a strike, and none for any other.
///
/// A store without this support answers a check with a penalty by
/// [`StoreError::Unsupported`](crate::StoreError::Unsupported), and is tested with
/// `store::contract::holds_without_penalties`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of windows",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect(url).await?`"
)]
pub trait Store: Send + Sync + 'static {
    /// Records the request in all of its windows if it fits into all of them, else in none.
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict>;

    /// Says what [`Store::admit`] would answer, recording nothing.
    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict>;

    /// Removes an admitted request from its windows, and nothing else.
    ///
    /// Says whether it was still there.
    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool>;

    /// Records what a process knows of a log, whatever the quotas say.
    ///
    /// What has left the log's longest window already is left out. A store that several processes
    /// share also leaves out the admissions from before the log was last reset, and a ban that was
    /// lifted since it was seen, so that a process which has not heard of that does not undo it.
    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored>;

    /// Empties windows.
    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        (**self).admit(check)
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        (**self).peek(check)
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        (**self).cancel(check)
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        (**self).restore(log, known)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        (**self).reset(partitions)
    }
}
