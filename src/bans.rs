//! [`Bans`]: lists, imposes and lifts the bans of a policy.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{StoreError, or_panic};
use crate::key::Key;
use crate::policy::{PolicyError, PolicyHandle};
use crate::store::{Ban, BanPage, Store, to_the_end};
use crate::window::LogId;

const LIST_PAGE: usize = 1_000;
const NOT_ENFORCED: &str = "a ban under a policy that has no penalty, so that it would not be enforced; \
     set a policy that has one (Policy::penalty), such as Penalty::manual()";

type OnEvent = dyn Fn(&BanEvent) + Send + Sync;

/// The bans of a policy.
///
/// They are kept under the policy's name, in the store that the limiters use. A ban can become longer
/// but not shorter: to impose one that ends earlier changes nothing, and neither does a strike.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Bans, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
/// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty("3/10m:1m,1h".parse().unwrap());
/// let bans = Bans::new(user, MemoryStore::new()).on_event(|event| println!("{event:?}"));
///
/// let ban = bans.impose("mallory", Duration::from_secs(3600), "sells accounts").await?;
/// assert_eq!(ban.reason, "sells accounts");
/// assert_eq!(bans.list().await?.len(), 1);
/// assert!(bans.lift("mallory").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Bans {
    policy: PolicyHandle,
    store: Arc<dyn Store>,
    on_event: Option<Arc<OnEvent>>,
}

/// A change of a ban by [`Bans`], for an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BanEvent {
    /// A ban was imposed, or made longer.
    Imposed {
        /// The policy's name.
        policy: String,
        /// The banned key.
        key: Key,
        /// The ban.
        ban: Ban,
    },
    /// A ban, or strikes that had brought none, were lifted.
    Lifted {
        /// The policy's name.
        policy: String,
        /// The key.
        key: Key,
    },
}

impl Bans {
    /// Gives access to the bans of a policy.
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many, or no [`Penalty`](crate::Penalty): only a policy that has one
    /// enforces bans.
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, store: impl Store) -> Self {
        or_panic(Self::try_new(policy, store))
    }

    /// Gives access to the bans of a policy, or returns an error if they would not be enforced.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NoPenalty`] if the policy has no [`Penalty`](crate::Penalty).
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many. [`PolicyHandle::try_new`] returns an error instead.
    #[track_caller]
    pub fn try_new(
        policy: impl Into<PolicyHandle>,
        store: impl Store,
    ) -> Result<Self, PolicyError> {
        let policy = policy.into();
        if policy.get().get_penalty().is_none() {
            return Err(PolicyError::NoPenalty { name: policy.get().name().to_owned() });
        }
        Ok(Self { policy, store: Arc::new(store), on_event: None })
    }

    /// Sets a closure that is called after each ban that is imposed or lifted here. Defaults to none.
    ///
    /// It runs inside [`Bans::impose`], [`Bans::impose_if_longer`], [`Bans::lift`] and [`Bans::pardon`], so it must not
    /// block. If the caller has left, it runs where the change ends. A change that is an error, because its reply was lost,
    /// may have been made without an event. It is not called for bans that strikes cause: those are in
    /// [`Usage::bans`](crate::Usage::bans) of the decision.
    pub fn on_event(mut self, closure: impl Fn(&BanEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(closure));
        self
    }

    /// Returns the ban of a key, or `None` if the key is not banned.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Ban>, StoreError> {
        self.store.ban(&self.log(key)).await
    }

    /// Bans a key for `duration` from now, at most a year, unless its present ban lasts longer. Returns the ban that is in
    /// effect afterwards. It takes effect within a second in all processes that share the store.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] if the policy has lost its [`Penalty`](crate::Penalty) since, as by
    /// [`PolicyHandle::set`] with a policy that has none: the ban would not be enforced. Any other
    /// [`StoreError`] if the store fails.
    pub async fn impose(
        &self,
        key: impl Into<Key>,
        duration: Duration,
        reason: &str,
    ) -> Result<Ban, StoreError> {
        self.impose_on(key.into(), duration, reason, false).await
    }

    /// Bans a key as [`Bans::impose`] does, but not while a ban stands that was imposed for as long or for
    /// longer.
    ///
    /// Of several calls with one `duration`, at the same time or one after the other, one imposes the ban: the
    /// one whose [`Ban::is_new`] is true. A ban by strikes counts as one of no length.
    ///
    /// # Errors
    ///
    /// As for [`Bans::impose`].
    pub async fn impose_if_longer(
        &self,
        key: impl Into<Key>,
        duration: Duration,
        reason: &str,
    ) -> Result<Ban, StoreError> {
        self.impose_on(key.into(), duration, reason, true).await
    }

    async fn impose_on(
        &self,
        key: Key,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> Result<Ban, StoreError> {
        let log = self.log(key);
        if log.policy.get_penalty().is_none() {
            return Err(StoreError::Unsupported { what: NOT_ENFORCED });
        }
        let duration = duration.min(crate::policy::LONGEST_BAN);
        let (this, reason) = (self.clone(), reason.to_owned());
        let imposed = to_the_end(async move {
            let ban = this.store.impose(&log, duration, &reason, only_longer).await?;
            let event = ban.is_new.then(|| {
                let policy = log.policy.name().to_owned();
                let event = BanEvent::Imposed { policy, key: log.key, ban: ban.clone() };
                PendingEvent { on_event: this.on_event, event }
            });
            Ok((event, ban))
        });
        imposed.await.map(|(_event, ban)| ban)
    }

    /// Lifts the ban of a key and deletes its strikes and its level. Returns whether there were any.
    ///
    /// Its log stays as full as it was, so that the next request can be denied and banned again. To forgive a key use
    /// [`Bans::pardon`].
    ///
    /// The ban ends within a second in all processes that share the store. A [`RedisStore`](crate::RedisStore) keeps a small
    /// mark of it for a year, as long as a ban may last that another process knows of. If Redis loses that mark with its
    /// data, a process that has met the ban, and has not checked the key since, imposes it again.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails. A [`RedisStore`](crate::RedisStore) has lifted the ban of this process by
    /// then, but in Redis and in other processes it may stand. Lift it again when Redis answers.
    pub async fn lift(&self, key: impl Into<Key>) -> Result<bool, StoreError> {
        self.lift_ban(key.into(), false).await
    }

    async fn lift_ban(&self, key: Key, resets: bool) -> Result<bool, StoreError> {
        let (this, log) = (self.clone(), self.log(key));
        let lifted = to_the_end(async move {
            if resets {
                // The ban holds requests off until its log is empty.
                this.store.reset(&log).await?;
            }
            let was_there = this.store.lift(&log).await?;
            let event = was_there.then(|| {
                let event = BanEvent::Lifted { policy: log.policy.name().to_owned(), key: log.key };
                PendingEvent { on_event: this.on_event, event }
            });
            Ok((event, was_there))
        });
        lifted.await.map(|(_event, was_there)| was_there)
    }

    /// Lifts the ban of a key as [`Bans::lift`] does, and empties its log, so that the next request is admitted. The logs of
    /// other policies stay. Returns whether there was a ban, a strike or a level.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store fails. Then the ban may stand, and the log may be empty already: call it again
    /// when the store answers.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Bans, Limiter, MemoryStore, Policy, PolicyHandle, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let user = Policy::new("user").quota(Quota::per_hour(1)).penalty("1/1d:1h".parse().unwrap());
    /// let (user, store) = (PolicyHandle::new(user), MemoryStore::new());
    /// let (limiter, bans) = (Limiter::new(&user, store.clone()), Bans::new(&user, store));
    /// assert!(limiter.check("alice").await?.is_admitted());
    /// assert!(!limiter.check("alice").await?.is_admitted()); // a strike, and a ban
    /// assert!(bans.pardon("alice").await?);
    /// assert!(limiter.check("alice").await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pardon(&self, key: impl Into<Key>) -> Result<bool, StoreError> {
        self.lift_ban(key.into(), true).await
    }

    /// Returns about `count` of the banned keys, and where the next page begins.
    ///
    /// A key that is banned while all pages are read is in one of them. On Redis it can be in two, and a
    /// page can have a few more keys than `count`.
    ///
    /// The work of a page is bounded: it reads at most 100,000 keys. These are the keys of all policies,
    /// and on Redis those of the whole database. So a page can have fewer bans than `count`, even none,
    /// without being the last one. On Redis a page takes one round trip for each thousand keys that it
    /// reads, or for fewer if `count` is small, and as many again for the bans among them. After a restart of Redis or a
    /// failover, begin anew: the next page of an earlier server can leave out bans.
    ///
    /// ```
    /// use tower_sliding_window::{Bans, StoreError};
    ///
    /// async fn count(bans: &Bans) -> Result<usize, StoreError> {
    ///     let (mut next, mut count) = (Some(0), 0);
    ///     while let Some(cursor) = next {
    ///         let page = bans.page(cursor, 1_000).await?;
    ///         count += page.bans.len();
    ///         next = page.next;
    ///     }
    ///     Ok(count)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, and any other [`StoreError`] if the store fails.
    pub async fn page(&self, cursor: u64, count: usize) -> Result<BanPage, StoreError> {
        self.store.bans(&self.policy.get(), cursor, count).await
    }

    /// Returns all banned keys, each once, the longest ban first.
    ///
    /// It reads all [pages](Bans::page) and holds all bans in memory. Its cost grows with the number of
    /// keys in the store, and on Redis with that of all keys in the database. It is for an admin page,
    /// not for each request.
    ///
    /// # Errors
    ///
    /// As for [`Bans::page`].
    pub async fn list(&self) -> Result<Vec<(Key, Ban)>, StoreError> {
        let (mut next, mut bans) = (Some(0), HashMap::new());
        while let Some(cursor) = next {
            let page = self.page(cursor, LIST_PAGE).await?;
            bans.extend(page.bans);
            next = page.next;
        }
        let mut bans: Vec<(Key, Ban)> = bans.into_iter().collect();
        bans.sort_by_key(|(_, ban)| std::cmp::Reverse(ban.remaining));
        Ok(bans)
    }

    fn log(&self, key: impl Into<Key>) -> LogId {
        LogId::new(self.policy.get(), key)
    }
}

/// An event that is emitted when this is dropped: in the context of the caller, or where the change ends if the caller has left.
struct PendingEvent {
    on_event: Option<Arc<OnEvent>>,
    event: BanEvent,
}

impl Drop for PendingEvent {
    fn drop(&mut self) {
        if let Some(on_event) = &self.on_event {
            on_event(&self.event);
        }
    }
}

impl fmt::Debug for Bans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bans").field("policy", &self.policy).finish_non_exhaustive()
    }
}
