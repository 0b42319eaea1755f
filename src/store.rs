//! [`Store`]: where the logs are kept.
//!
//! An application creates a store and passes it to a [`Limiter`](crate::Limiter) or a
//! [`SlidingWindowLayer`](crate::SlidingWindowLayer). The trait is for authors of stores.

pub(crate) mod bans;
mod conclude;
#[cfg(feature = "contract")]
pub mod contract;
mod future;
#[cfg(feature = "memory")]
pub(crate) mod memory;
mod pending_check;
pub(crate) mod permit;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::policy::Policy;

pub(crate) use self::bans::{Ban, BanPage};
pub(crate) use self::conclude::{admit_if_open, conclude, report};
pub use self::future::StoreFuture;
pub(crate) use self::future::{begin, to_the_end};
pub(crate) use self::pending_check::{PendingCheck, SettleHandle, may_have_counted};
pub(crate) use self::permit::Permit;
pub(crate) use crate::window::Explanation;
pub use crate::window::{BanState, Check, LogId, LogOutcome, Outcome, QuotaState, Strike};

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
///   Policies that have it in common share the log, whatever their quotas.
/// - A log keeps an entry for [`Policy::retention`](crate::Policy::retention), which all of them have in
///   common. An entry that is exactly as old as a window is outside of it.
///
/// ## Checks
///
/// - [`Outcome::new`] takes one [`LogOutcome`] for each of [`Check::logs`], in their order. It has a
///   [`QuotaState`] for each of the policy's [`quotas`](crate::Policy::quotas), in their order.
/// - An admission adds an entry to each log. In a [budget](crate::Policy::budget) it takes as many places as
///   [`Check::costs`] has for it, and in another log one. A cost of 0 adds no entry, and is denied only by a log in
///   which more than a limit is taken, or by a ban.
/// - The limiter and the layer refuse a check that no store could ever admit, or that lacks a value. A store sees none of those, and
///   who calls one without them has to see to that.
/// - After an admission, [`QuotaState::remaining`] and [`QuotaState::reset`] include the request.
///   After a denial or a peek they do not. [`QuotaState::wait`] is the time until there is room for
///   the cost in its log, and is always computed before the request is recorded.
/// - [`Outcome::timestamp`] is the instant of the decision on the store's clock.
///   [`QuotaState::reset`] may be zero unless [`Check::wants_reset`] is set.
/// - A log whose policy [counts](crate::Policy::counts) distinct values or requests in flight has one entry
///   for a value, which is [`LogId::value`], or for a request. If it has that entry in the window of a quota, the
///   request takes no place in it. An admission of a cost above 0 adds the entry or gives it the
///   present timestamp, and never an earlier one.
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
///   and the key is banned. The length of the ban is the next of [`Penalty::levels`]. After the
///   last length, the last one repeats.
/// - The key comes down one level for each [`Penalty::decay_time`] between the end of its last ban and
///   the next ban.
/// - [`LogOutcome::set_ban`] sets the [`BanState`] of a log whose key is banned, or whose policy
///   counted the request as a strike.
///
/// The ban records are kept by the name of the policy and the key, and [`Store::ban`], [`Store::impose`],
/// [`Store::lift`] and [`Store::bans`] give access to them.
///
/// A store that does not support penalties must return
/// [`StoreError::Unsupported`] for a check with a penalty.
///
/// [`Policy::get_penalty`]: crate::Policy::get_penalty
/// [`Penalty::strikes`]: crate::Penalty::strikes
/// [`Penalty::levels`]: crate::Penalty::levels
/// [`Penalty::decay_time`]: crate::Penalty::decay_time
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "use `MemoryStore::new()` or `RedisStore::connect_lazy(url)?`; for either, an `Arc<dyn Store>`"
)]
pub trait Store: Send + Sync + 'static {
    /// Records the request in all logs of the check if it fits into all of them, otherwise in none.
    ///
    /// A future that is not ready at once sends nothing before its first poll: a request whose future is dropped unpolled does
    /// not count.
    fn admit(&self, check: &Check) -> StoreFuture<Outcome>;

    /// Returns the outcome that [`Store::admit`] would have, without recording anything.
    fn peek(&self, check: &Check) -> StoreFuture<Outcome>;

    /// Explains what the only log of a check decides about a new request of the check's cost.
    ///
    /// - Nothing changes: no entry, no strike, and not how long the log is kept.
    /// - An explanation decides as [`Store::peek`] does at the same instant.
    /// - [`Explanation::new`] makes it from the admissions of a log, of which those that have left a
    ///   window are left out. Which of several admissions of one timestamp
    ///   [`QuotaExplanation::waits_for`](crate::QuotaExplanation::waits_for) names is up to the store.
    /// - If a policy has a penalty, the explanation has the ban record of the key.
    ///
    /// A store that can't list its admissions returns
    /// [`StoreError::Unsupported`].
    ///
    /// # Panics
    ///
    /// If the check has no log.
    fn explain(&self, check: &Check) -> StoreFuture<Explanation>;

    /// Sets what the check's identity takes in each of its logs.
    ///
    /// - In a [budget](crate::Policy::budget) it is `cost` from then on, whatever the quotas are. In another log it
    ///   stays one place. With a cost of 0 the entry is removed. The timestamp stays. [`Check::costs`] has
    ///   what the request cost when it was admitted: an earlier call may have set another cost.
    /// - The check may have only some of the logs of the admission. Then the others are not changed.
    /// - A log without an entry of the identity is not changed, and neither is one whose entry is
    ///   older than the retention. With a cost of 0 such an expired entry is removed, too.
    /// - Strikes and bans stay, and so do [distinct](crate::Policy::distinct) values.
    ///
    /// Returns whether a log had an entry of the identity within its retention.
    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool>;

    /// Empties a log. Strikes and bans stay.
    fn reset(&self, log: &LogId) -> StoreFuture<()>;

    /// Returns the ban of a log's key, or `None` if the key is not banned.
    ///
    /// Defaults to [`StoreError::Unsupported`], as do the other methods for bans.
    fn ban(&self, _log: &LogId) -> StoreFuture<Option<Ban>> {
        no_bans()
    }

    /// Bans a log's key for `duration`, at most a year, which [`Bans`](crate::Bans) sees to, unless its present ban
    /// lasts longer. With `only_longer`, a ban that was imposed by hand for `duration` or longer is left, too. Returns
    /// the ban that is in effect afterwards, whose `is_new` and `lengthens` say what this call did. [`Store::ban`]
    /// leaves both false.
    fn impose(
        &self,
        _log: &LogId,
        _duration: Duration,
        _reason: &str,
        _only_longer: bool,
    ) -> StoreFuture<Ban> {
        no_bans()
    }

    /// Deletes the ban, the strikes and the level of a log's key. Returns whether there were any.
    fn lift(&self, _log: &LogId) -> StoreFuture<bool> {
        no_bans()
    }

    /// Returns a page of about `count` keys that are banned under a policy.
    ///
    /// The first page begins at cursor 0. A key that is banned while all pages are read
    /// is in one of them.
    fn bans(&self, _policy: &Arc<Policy>, _from: u64, _count: usize) -> StoreFuture<BanPage> {
        no_bans()
    }
}

fn no_bans<T>() -> StoreFuture<T> {
    StoreFuture::ready(Err(StoreError::Unsupported { what: "bans" }))
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        (**self).admit(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        (**self).peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        (**self).explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        (**self).settle(check, cost)
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        (**self).reset(log)
    }

    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        (**self).ban(log)
    }

    fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> StoreFuture<Ban> {
        (**self).impose(log, duration, reason, only_longer)
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        (**self).lift(log)
    }

    fn bans(&self, policy: &Arc<Policy>, from: u64, count: usize) -> StoreFuture<BanPage> {
        (**self).bans(policy, from, count)
    }
}
