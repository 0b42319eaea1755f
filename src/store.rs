//! [`Store`]: where the logs are kept.
//!
//! An application creates a store and passes it to a [`Limiter`](crate::Limiter) or a
//! [`SlidingWindowLayer`](crate::SlidingWindowLayer). The traits are for authors of stores.

mod ban_store;
mod conclude;
#[cfg(feature = "contract")]
pub mod contract;
mod deny_cache;
#[cfg(feature = "memory")]
mod expiring;
#[cfg(feature = "redis")]
mod failover;
#[cfg(all(test, feature = "redis"))]
mod faulty;
#[cfg(feature = "memory")]
mod fill;
mod future;
#[cfg(feature = "memory")]
mod memory;
mod pending_check;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "memory")]
mod slots;
mod snapshot;
#[cfg(feature = "redis")]
mod underlying;

use std::sync::Arc;

pub use self::ban_store::{Ban, BanCursor, BanPage, BanStore, ParseBanCursorError};
pub(crate) use self::conclude::{admit_if_open, conclude, report};
pub use self::deny_cache::DenyCache;
#[cfg(all(feature = "memory", feature = "moderation"))]
pub(crate) use self::expiring::ExpiringMap;
#[cfg(all(feature = "memory", any(feature = "storm", feature = "moderation")))]
pub(crate) use self::expiring::{ExpiringValue, Keep, Room, heap_bytes_of};
pub use self::future::StoreFuture;
#[cfg(feature = "memory")]
pub use self::memory::MemoryStore;
pub(crate) use self::pending_check::{CancelHandle, PendingCheck, may_have_counted};
#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};
pub use self::snapshot::{Admission, BanSnapshot, LogSnapshot, Restored};
#[cfg(feature = "redis")]
pub use crate::redis::{RedisCommands, RedisScript, RedisServers};
pub use crate::window::{
    BanState, Check, DecidedBy, Explanation, LogId, LogOutcome, Outcome, QuotaState, Strike,
};

/// Keeps the logs, and decides atomically whether a request fits into all logs of a check.
///
/// A store is a cheap handle: clones share the logs. A check is borrowed: a store that needs it until
/// the reply arrives clones it.
///
/// # Implementing a store
///
/// A store must guarantee:
///
/// - At most `limit` admissions of a key lie in any `(t - window, t]`.
/// - A denied request leaves no trace in the logs.
/// - A request counts once under its [`Check::id`].
///
/// The contract test `store::contract::holds`, behind the feature `contract`, plays random histories to
/// a store and compares each outcome with the exact algorithm. Call it in a test of the store.
///
/// ## Logs
///
/// - A log is identified by [`Policy::log_name`](crate::Policy::log_name) and the bytes of the key.
///   All versions of a policy share it, whatever their quotas.
/// - A log keeps an entry for the longest window among the quotas and candidates of the check's
///   policy, or for longer if another policy of the same name has been used with a longer window. An
///   entry that is exactly as old as a window is outside of it.
///
/// ## Checks
///
/// - [`Outcome::new`] takes one [`LogOutcome`] for each of [`Check::logs`], in their order. It has a
///   [`QuotaState`] for each of the policy's [`quotas`](crate::Policy::quotas) and each of its
///   [`candidates`](crate::Policy::candidates), in their order. A full candidate denies nothing.
/// - An admission adds as many entries of one timestamp and identity to each log as [`Check::costs`] has
///   for it. A cost of 0 adds no entry, and is denied only by a log with more entries than a limit, or
///   by a ban.
/// - After an admission, [`QuotaState::remaining`] and [`QuotaState::reset`] include the request.
///   After a denial or a peek they do not. [`QuotaState::wait`] is the time until there is room for
///   the cost in its log, and is always computed before the request is recorded.
/// - [`Outcome::timestamp`] is the instant of the decision on the store's clock.
///   [`QuotaState::reset`] may be zero unless [`Check::wants_reset`] is set.
/// - If [`Check::repeated`] is set and a log of the check has the identity, the outcome is an
///   admission without any ban, with all waits zero and with the timestamp of the entries. Nothing is
///   recorded. If no log has the identity, the check is decided like any other.
///
/// ## Penalties
///
/// A policy may have a [`Penalty`](crate::Penalty), see [`Policy::get_penalty`]. The store applies it
/// in the same atomic step as it decides:
///
/// - If the key is banned, the request is denied, whatever the log holds. This denial is no strike.
/// - If the key is not banned and a quota of the policy is full, the denial is a strike and begins an episode. The episode lasts
///   as long as the longest window among the full quotas. Further denials in the episode are no
///   strikes. A peek is never a strike, and an identity is one strike at most.
/// - When as many strikes as the limit of [`Penalty::strikes`] lie within its window, they are deleted
///   and the key is banned. The length of the ban is the next of [`Penalty::ban_lengths`] for the
///   check's identity. After the last length, the last one repeats.
/// - The key comes down one level for each [`Penalty::decay_time`] between the end of its last ban and
///   the next ban.
/// - [`LogOutcome::with_ban`] sets the [`BanState`] of a log whose key is banned, or whose policy
///   counted the request as a strike.
///
/// A store that does not support penalties must return
/// [`StoreError::Unsupported`](crate::StoreError::Unsupported) for a check with a penalty. Test it with
/// `store::contract::holds_without_penalties`.
///
/// [`Policy::get_penalty`]: crate::Policy::get_penalty
/// [`Penalty::strikes`]: crate::Penalty::strikes
/// [`Penalty::ban_lengths`]: crate::Penalty::ban_lengths
/// [`Penalty::decay_time`]: crate::Penalty::decay_time
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect_lazy(url)?`; for either, an `Arc<dyn Store>`"
)]
pub trait Store: Send + Sync + 'static {
    /// Records the request in all logs of the check if it fits into all of them, otherwise in none.
    fn admit(&self, check: &Check) -> StoreFuture<Outcome>;

    /// Returns the outcome that [`Store::admit`] would have, without recording anything.
    fn peek(&self, check: &Check) -> StoreFuture<Outcome>;

    /// Explains each log of the check, in their order, for a new request of its cost in the log.
    ///
    /// - Nothing changes: no entry, no strike, and not how long the log is kept.
    /// - An explanation decides as [`Store::peek`] does at the same instant. The logs of a check may be
    ///   read at different instants.
    /// - [`Explanation::new`] makes it from the admissions of a log, of which those that have left a
    ///   window are left out. Which of several admissions of one timestamp
    ///   [`QuotaExplanation::waits_for`](crate::QuotaExplanation::waits_for) names is up to the store.
    /// - If a policy has a penalty, the explanation has the ban record of the key.
    ///
    /// A store that can't list its admissions returns
    /// [`StoreError::Unsupported`](crate::StoreError::Unsupported).
    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>>;

    /// Sets how many entries the check's identity has in each of its logs.
    ///
    /// - Missing entries are added with the timestamp of those that the log has, whatever the quotas
    ///   are. Other entries are removed. [`Check::costs`] is ignored: an earlier call may have set
    ///   another number.
    /// - The check may have only some of the logs of the admission. Then the others are not changed.
    /// - A log without an entry of the identity is not changed, and neither is one whose entries have
    ///   left the longest window of the check's policy. With a cost of 0 these are removed too.
    /// - Strikes and bans stay.
    ///
    /// Returns whether a log had an entry that had not left the longest window.
    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool>;

    /// Removes all entries of the check's identity from its logs. It is [`Store::settle`] at 0.
    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        self.settle(check, 0)
    }

    /// Records what a process has decided or seen without this store, whatever the quotas are.
    ///
    /// - An admission is recorded with the timestamp of the store's present time minus
    ///   [`Admission::age`]. It is ignored if it has left the longest window of the log's policy.
    /// - If the log has the admission's identity, no entry is added, whatever the admission's cost is,
    ///   and the timestamp of the entries is raised to the admission's if that is later. It is not
    ///   raised if the admission is [`confirmed`](Admission::confirmed).
    /// - A ban is imposed for its remaining length, unless the key's present ban ends at the same time
    ///   or later. The key's level does not rise.
    /// - A store that several processes share also ignores the admissions from before the last reset of
    ///   the log, and a ban that was lifted after the process last saw it. So a process that does not
    ///   know of the reset or the lift does not undo it.
    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored>;

    /// Empties logs. Strikes and bans stay.
    fn reset(&self, logs: &[LogId]) -> StoreFuture<()>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        (**self).admit(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        (**self).peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        (**self).explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        (**self).settle(check, cost)
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        (**self).restore(log, snapshot)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        (**self).reset(logs)
    }
}
