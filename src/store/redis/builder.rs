//! [`RedisStoreBuilder`]: the settings of a [`RedisStore`].

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;

use super::RedisStore;
#[cfg(feature = "cluster")]
use super::cross_slot::CrossSlot;
use super::direct::DirectStore;
use crate::error::StoreError;
use crate::redis::{CircuitBreaker, Client, Connection, Connector, Keys, Outage, RedisServers};
use crate::store::deny_cache::{DEFAULT_CAPACITY, DEFAULT_MAX_AGE};
use crate::store::failover::Failover;
use crate::store::underlying::Underlying;
use crate::store::{DenyCache, MemoryStore, Store};

/// How long a call is under way, as a write-back takes it: it restores no admission that is so little
/// younger than a reset, because that may have come first. A write-back that takes longer cancels those.
const USUAL_DELAY: Duration = Duration::from_millis(50);
const DEFAULT_PREFIX: &str = "tsw";
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_LOCAL_CAPACITY: usize = 1_000_000;

/// Settings of a [`RedisStore`].
///
/// ```no_run
/// use std::time::Duration;
/// use tower_sliding_window::RedisStore;
///
/// # async fn connect() -> Result<(), tower_sliding_window::StoreError> {
/// let store = RedisStore::builder()
///     .prefix("shop")
///     .response_timeout(Duration::from_millis(20))
///     .deny_cache_capacity(1_000_000)
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
    deny_cache_capacity: usize,
    deny_cache_max_age: Duration,
    local_capacity: usize,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            response_timeout: DEFAULT_RESPONSE_TIMEOUT,
            deny_cache: true,
            deny_cache_capacity: DEFAULT_CAPACITY,
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
    /// After that the connection counts as dead, and the failure policies decide until a new one
    /// replies. A late reply is no silence: while replies to other calls arrive, a call waits for its
    /// own. The time counts from sending, and leaves out what this process was late by itself. So a
    /// busy machine, or a Redis 250 ms away, is no outage. Choose a shorter time where a request must
    /// not wait so long for a Redis that has just died.
    ///
    /// On a Cluster, of which one node may be silent, it is the time for each call.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets whether this process repeats denials from memory. Defaults to `true`.
    pub fn deny_cache(mut self, deny_cache: bool) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Sets [`DenyCache::capacity`]. Defaults to 65,536.
    pub fn deny_cache_capacity(mut self, capacity: usize) -> Self {
        self.deny_cache_capacity = capacity;
        self
    }

    /// Sets [`DenyCache::max_age`]. Defaults to one second.
    pub fn deny_cache_max_age(mut self, max_age: Duration) -> Self {
        self.deny_cache_max_age = max_age;
        self
    }

    /// Sets how many logs this process keeps for an outage. Defaults to a million.
    ///
    /// They are the logs of the keys for which this process has admitted requests. A log takes
    /// about 110 bytes with one admission and about 240 with five, until its last admission is one
    /// window old.
    ///
    /// At the capacity, Redis still serves a key that has no log here. In an outage such a key has
    /// no local decision: the policy `Open` admits it, any other policy refuses it. A client that
    /// invents user ids fills the logs as it fills a [`MemoryStore`], with the same warning and
    /// metrics: see [`MemoryStore::with_capacity`] for the arithmetic and the remedy.
    pub fn local_capacity(mut self, capacity: usize) -> Self {
        self.local_capacity = capacity;
        self
    }

    /// Connects to one or several servers.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] as for [`RedisStore::connect`].
    pub async fn connect<T>(self, servers: T) -> Result<RedisStore, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        let (store, breaker) = self.build(servers.try_into()?)?;
        breaker.connect().await?;
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
        let (store, breaker) = self.build(servers.try_into()?)?;
        breaker.connect_in_background();
        Ok(store)
    }

    /// Uses an existing connection. Its own timeouts apply in addition to the one set here.
    #[must_use]
    pub fn connection(self, connection: ConnectionManager) -> RedisStore {
        let outage = Outage::new();
        outage.set_reconnects_silently();
        let connector = Connector::Managed(connection.clone());
        let breaker = CircuitBreaker::new(connector, self.response_timeout, outage.clone());
        breaker.set_ready(Connection::Managed(connection));
        let client = Client::new(breaker, Keys::new(self.prefix.clone()));
        let direct = DirectStore::new(client.clone(), self.response_timeout.min(USUAL_DELAY));
        self.store(direct, outage, client)
    }

    fn build(self, servers: RedisServers) -> Result<(RedisStore, CircuitBreaker), StoreError> {
        let outage = Outage::new();
        #[cfg(feature = "cluster")]
        let is_cluster = servers.is_cluster();
        let connector = servers.connector(self.response_timeout, &outage);
        let connector =
            connector.map_err(|error| StoreError::Unreachable { message: error.to_string() })?;
        let breaker = CircuitBreaker::new(connector, self.response_timeout, outage.clone());
        let client = Client::new(breaker.clone(), Keys::new(self.prefix.clone()));
        let direct = DirectStore::new(client.clone(), self.response_timeout.min(USUAL_DELAY));
        #[cfg(feature = "cluster")]
        if is_cluster {
            let cross_slot = CrossSlot::new(direct.with_resends());
            return Ok((self.store(cross_slot, outage, client), breaker));
        }
        Ok((self.store(direct, outage, client), breaker))
    }

    fn store(self, store: impl Underlying, outage: Outage, client: Client) -> RedisStore {
        let local = MemoryStore::with_capacity(self.local_capacity);
        let logs: Arc<dyn Store> = if self.deny_cache {
            let cache = DenyCache::with(store, self.deny_cache_capacity, self.deny_cache_max_age);
            Arc::new(Failover::new(cache, local.clone(), outage))
        } else {
            Arc::new(Failover::new(store, local.clone(), outage))
        };
        RedisStore { logs, local, client }
    }
}
