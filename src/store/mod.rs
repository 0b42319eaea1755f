//! [`Store`]: where the windows are kept.
//!
//! Applications choose one and hand it to a [`Limiter`](crate::Limiter) or a
//! [`SlidingWindowLayer`](crate::SlidingWindowLayer); only who writes a store needs the traits.

#[cfg(all(test, feature = "memory", feature = "redis"))]
mod agreement;
mod answer;
mod bans;
mod check;
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
pub use redis::{RedisServers, RedisStore, RedisStoreBuilder};
pub use verdict::{BanState, DecidedBy, QuotaState, Struck, Verdict};

/// Keeps the windows and decides, atomically, whether a request fits into all of its own.
///
/// A store is a cheap handle: clones share the windows. It must keep the crate's promises: never
/// more than `limit` admissions in any `(t - window, t]`, no trace of a denied request, and a
/// request with the same [`Check::id`] counted once.
///
/// Questions are shared, so that a store which answers later can keep one without a copy.
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
