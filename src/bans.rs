//! [`Bans`]: the bans of a policy, to look at, impose and lift by hand.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::key::Key;
use crate::policy::PolicyHandle;
use crate::store::{BanStore, Partition};

type OnEvent = dyn Fn(&BanEvent) + Send + Sync;

/// The bans of a policy.
///
/// They are kept by the policy's name, in the store that the limiters use. A ban only ever
/// lengthens: imposing a shorter one than stands changes nothing, and so does a strike.
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
/// assert_eq!(ban.reason(), "sells accounts");
/// assert_eq!(bans.list().await?.len(), 1);
/// assert!(bans.lift("mallory").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bans {
    policy: PolicyHandle,
    store: Arc<dyn BanStore>,
    on_event: Option<Arc<OnEvent>>,
}

/// A ban that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    pub(crate) remaining: Duration,
    pub(crate) reason: String,
    pub(crate) is_new: bool,
}

impl Ban {
    /// Returns how long it goes on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns why it was imposed: `strikes`, or what was given by hand.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// What somebody did to a ban by hand, for an audit log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BanEvent {
    /// A ban was imposed, or a standing one lengthened.
    Imposed {
        /// The policy's name.
        policy: String,
        /// Who was banned.
        key: Key,
        /// The ban.
        ban: Ban,
    },
    /// A ban was lifted, with all strikes and rungs.
    Lifted {
        /// The policy's name.
        policy: String,
        /// Whose ban it was.
        key: Key,
    },
}

impl Bans {
    /// Gives access to the bans of a policy.
    ///
    /// # Panics
    ///
    /// If the policy has no quota.
    #[must_use]
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, store: impl BanStore) -> Self {
        Self { policy: policy.into(), store: Arc::new(store), on_event: None }
    }

    /// Sets what is told of each ban that is imposed or lifted here. Defaults to nothing.
    ///
    /// It runs on the caller's path: it must not block. Bans that strikes bring are told of by the
    /// decision that brings them, see [`Usage::bans`](crate::Usage::bans).
    #[must_use]
    pub fn on_event(mut self, tell: impl Fn(&BanEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(tell));
        self
    }

    /// Returns the ban of a key, if there is one.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Ban>, StoreError> {
        self.store.ban(&self.partition(key)).await
    }

    /// Bans a key for at least so long from now, and returns the ban that stands.
    ///
    /// At most a year; a longer ban is one of a year. It holds within a second, in all
    /// processes that share the store.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer.
    pub async fn impose(
        &self,
        key: impl Into<Key>,
        duration: Duration,
        reason: &str,
    ) -> Result<Ban, StoreError> {
        let partition = self.partition(key);
        let duration = duration.min(crate::penalty::LONGEST_BAN);
        let ban = self.store.impose(&partition, duration, reason).await?;
        if ban.is_new {
            let policy = partition.policy.name().to_owned();
            self.tell(|| BanEvent::Imposed { policy, key: partition.key, ban: ban.clone() });
        }
        Ok(ban)
    }

    /// Lifts the ban of a key and forgets its strikes and rungs. Says whether there was any of these.
    ///
    /// It is over within a second, in all processes that share the store.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not answer.
    pub async fn lift(&self, key: impl Into<Key>) -> Result<bool, StoreError> {
        let partition = self.partition(key);
        let was_there = self.store.lift(&partition).await?;
        if was_there {
            let policy = partition.policy.name().to_owned();
            self.tell(|| BanEvent::Lifted { policy, key: partition.key });
        }
        Ok(was_there)
    }

    /// Returns all keys that are banned now, the longest ban first.
    ///
    /// On Redis it goes through all keys of the database, a thousand at a time: for people, not for
    /// each request.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, and any other [`StoreError`] if the store could not
    /// answer.
    pub async fn list(&self) -> Result<Vec<(Key, Ban)>, StoreError> {
        let mut bans = self.store.bans(&self.policy.get()).await?;
        bans.sort_by_key(|(_, ban)| std::cmp::Reverse(ban.remaining));
        Ok(bans)
    }

    fn partition(&self, key: impl Into<Key>) -> Partition {
        Partition { policy: self.policy.get(), key: key.into() }
    }

    fn tell(&self, event: impl FnOnce() -> BanEvent) {
        if let Some(tell) = &self.on_event {
            tell(&event());
        }
    }
}

impl fmt::Debug for Bans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bans").field("policy", &self.policy).finish_non_exhaustive()
    }
}
