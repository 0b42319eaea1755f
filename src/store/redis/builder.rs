//! [`RedisStoreBuilder`]: the settings of a [`RedisStore`].

use std::sync::Arc;
use std::time::Duration;

use super::denials::{DEFAULT_CAPACITY, DEFAULT_MAX_AGE, Denials};
use super::journal::Journal;
use super::{Inner, RedisStore};
use crate::MemoryStore;
use crate::error::StoreError;
use crate::redis::{Batch, Client, Health, Keys, RedisServers, Scripts};
use crate::time::Pace;

const DEFAULT_PREFIX: &str = "tsw";
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_LOCAL_CAPACITY: usize = 1_000_000;

/// Settings of a [`RedisStore`].
///
/// ```no_run
/// use tower_sliding_window::RedisStore;
///
/// # async fn connect() -> Result<(), tower_sliding_window::StoreError> {
/// let store = RedisStore::builder()
///     .prefix("shop")
///     .local_capacity(200_000)
///     .connect("redis://127.0.0.1:6379")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct RedisStoreBuilder {
    prefix: String,
    response_timeout: Duration,
    deny_cache: bool,
    deny_cache_max_age: Duration,
    local_capacity: usize,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            response_timeout: DEFAULT_RESPONSE_TIMEOUT,
            deny_cache: true,
            deny_cache_max_age: DEFAULT_MAX_AGE,
            local_capacity: DEFAULT_LOCAL_CAPACITY,
        }
    }
}

impl RedisStoreBuilder {
    /// Sets the prefix of all Redis keys. Defaults to `tsw`.
    ///
    /// # Panics
    ///
    /// If the prefix has a brace, which would move the keys to other cluster slots.
    #[track_caller]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        assert!(
            !self.prefix.contains(['{', '}']),
            "`prefix` has a brace, which would move keys to other cluster slots"
        );
        self
    }

    /// Sets how long the connection may be silent while calls wait for their replies. Defaults to
    /// 500 ms.
    ///
    /// After that the connection counts as dead, and the failure policies decide until a new one replies, on a Cluster about
    /// the keys of its node. A late reply is no silence: while replies to other calls arrive, a call waits for its own. The
    /// time counts from sending, and leaves out what this process was late by itself. So a busy machine, or a Redis 250 ms
    /// away, is no outage. Choose a shorter time where a request must not wait so long for a Redis that has just died.
    ///
    /// A new connection has one second, whatever this time is. TLS 1.2 takes four round trips, too many for a Redis 250 ms
    /// away.
    ///
    /// # Panics
    ///
    /// If the time is zero: no reply would be in time.
    #[track_caller]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        assert!(!timeout.is_zero(), "`response_timeout` is zero: no reply would be in time");
        self.response_timeout = timeout;
        self
    }

    /// Sets whether this process repeats denials from memory. Defaults to `true`.
    ///
    /// A log that has denied a request has no room before a certain instant. Until then, and for at most a second, the same
    /// request is denied from memory. It holds back no place that time has freed. A process may miss that another one
    /// has cancelled a request, reset the log or lifted the ban. A key that is denied again and again costs Redis only the
    /// checks of one round trip a second.
    ///
    /// The wait of such a denial is never too short, unless policies of different limits share the log and another one admits
    /// a request meanwhile. Of several logs it names those that are remembered as full. The others are
    /// [not read](crate::store::LogOutcome::is_read): one that is full for longer denies the request again after that wait. A
    /// denial by a budget is repeated only for requests of cost 1. 65,536 denials are remembered.
    pub fn deny_cache(mut self, deny_cache: bool) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Sets how long a denial is remembered at most. Defaults to one second.
    ///
    /// A longer age costs Redis fewer checks. A reset, a cancellation or a lifted ban in another process
    /// goes unnoticed for up to that long. With zero nothing is remembered.
    pub fn deny_cache_max_age(mut self, max_age: Duration) -> Self {
        self.deny_cache_max_age = max_age;
        self
    }

    /// Sets how many logs this process keeps for an outage or a loss of data. Defaults to a million.
    ///
    /// They are the logs of the keys for which this process has admitted requests. A log takes
    /// about 180 bytes with one admission and about 280 with five, until its last admission is as old as the
    /// [retention](crate::Policy::retention).
    ///
    /// In an outage there is also room for as many admissions to be written back, one for each log, and for as many settlements
    /// and cancellations. After a loss of data the admissions of a log are kept twice until they are written.
    ///
    /// At the capacity, Redis still serves a key that has no log here. In an outage such a key has no local decision, and
    /// neither has a request that has no room to be written back, unless it is denied: the policy `Open` admits it, any other
    /// policy refuses it. If there is room again by then, what Redis had admitted or banned without room here is not known. A
    /// client that invents user ids fills the logs as it fills a [`MemoryStore`], with the same warning and metrics: see
    /// [`MemoryStore::with_capacity`] for the remedy.
    pub fn local_capacity(mut self, capacity: usize) -> Self {
        self.local_capacity = capacity;
        self
    }

    /// Connects to one or several servers.
    ///
    /// # Errors
    ///
    /// As for [`RedisStore::connect`].
    pub async fn connect<T>(self, servers: T) -> Result<RedisStore, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        let store = self.build(servers.try_into()?, Scripts::shipped())?;
        store.0.client.connect().await?;
        Ok(store)
    }

    /// Connects in the background.
    ///
    /// # Errors
    ///
    /// As for [`RedisStore::connect_lazy`].
    pub fn connect_lazy<T>(self, servers: T) -> Result<RedisStore, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        let store = self.build(servers.try_into()?, Scripts::shipped())?;
        store.0.client.connect_in_background();
        Ok(store)
    }

    pub(super) fn build(
        self,
        servers: RedisServers,
        scripts: &'static Scripts,
    ) -> Result<RedisStore, StoreError> {
        let usable = servers.ensure_usable();
        usable.map_err(|error| StoreError::Configuration { message: error.to_string() })?;
        let (health, keys) = (Health::default(), Keys::new(self.prefix.clone()));
        let client = Client::new(servers, self.response_timeout, health.clone(), keys, scripts);
        let max_age = if self.deny_cache { self.deny_cache_max_age } else { Duration::ZERO };
        let inner = Inner {
            checks: Batch::new(client.clone()),
            reconciles: Batch::new(client.clone()),
            client,
            denials: Denials::new(DEFAULT_CAPACITY, max_age),
            local: MemoryStore::with_capacity(self.local_capacity),
            journal: Journal::new(self.local_capacity, self.response_timeout),
            health,
            refusals: Pace::new(),
        };
        Ok(RedisStore(Arc::new(inner)))
    }
}
