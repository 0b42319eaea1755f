//! [`RedisStore`]: the windows of a fleet.

mod commands;
mod keys;
mod reply;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo, RedisResult};

use self::commands::Commands;
use self::keys::Keys;
use super::{Check, DenyCache, Partition, Store, StoreFuture, Verdict};
use crate::error::StoreError;

/// What the Redis keys begin with unless told otherwise.
const DEFAULT_PREFIX: &str = "tsw";
/// How long an answer may take unless told otherwise.
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(50);
/// How long making a connection may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps the windows on a Redis server, shared by every process that uses it with one prefix.
///
/// A cheap handle: clones share the connection and the deny cache.
///
/// ## Behavior
///
/// - One script call a decision, atomic over all windows of the request. Requires Redis 6.2 or
///   later, or Valkey.
/// - Time is Redis's own, in microseconds: the servers' clocks do not matter.
/// - A key that was denied is denied again from this process's memory for as long as Redis would
///   deny it for certain, see [`DenyCache`].
/// - A check whose answer is lost is asked again, once, under the same identity, and counts once.
/// - Every key has a TTL of its policy's longest window. A window is one ZSET named
///   `PREFIX:{=KEY}:POLICY`, `%` and `}` in the key written as `%25` and `%7D`; a policy without a
///   name stands there as `default:QUOTAS`.
/// - Commands of concurrent requests share one connection, which is made again in the background
///   when it breaks. Calls meanwhile fail with a [`StoreError`]; so do all later ones if the server
///   answers the new connection with an error, such as a password it no longer takes.
/// - A check that fails although it may have been counted is cancelled in the background.
///
/// ```no_run
/// use tower_sliding_window::RedisStore;
///
/// # async fn connect() -> Result<(), tower_sliding_window::StoreError> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore(Arc<dyn Store>);

impl RedisStore {
    /// Connects to the server at `url`, such as `redis://:password@127.0.0.1:6379/0`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if there is no server, the URL is wrong, or the server does
    /// not accept the credentials.
    pub async fn connect(url: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        Self::builder().connect(url).await
    }

    /// Starts from settings other than the defaults.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Uses a connection that is there already, with the default settings otherwise.
    #[must_use]
    pub fn from_connection(connection: ConnectionManager) -> Self {
        Self::builder().connection(connection)
    }
}

impl Store for RedisStore {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        self.0.admit(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        self.0.peek(check)
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        self.0.cancel(check)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        self.0.reset(partitions)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What the connection shows of itself may hold a password.
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

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
    deny_cache_capacity: Option<usize>,
    deny_cache_max_age: Option<Duration>,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            response_timeout: DEFAULT_RESPONSE_TIMEOUT,
            deny_cache: true,
            deny_cache_capacity: None,
            deny_cache_max_age: None,
        }
    }
}

impl RedisStoreBuilder {
    /// Sets what the Redis keys begin with. Defaults to `tsw`.
    ///
    /// # Panics
    ///
    /// If it has a brace, which would move the keys to other cluster slots.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        assert!(!self.prefix.contains(['{', '}']), "a key prefix can't have braces");
        self
    }

    /// Sets how long an answer may take, waiting for a connection included. Defaults to 50 ms.
    ///
    /// A check that was not answered in time is asked once more, for as long again.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets whether denials are repeated from this process's memory. Defaults to `true`.
    pub fn deny_cache(mut self, deny_cache: bool) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Sets [`DenyCache::capacity`]. Defaults to 65,536.
    pub fn deny_cache_capacity(mut self, capacity: usize) -> Self {
        self.deny_cache_capacity = Some(capacity);
        self
    }

    /// Sets [`DenyCache::max_age`], where its defaults are described.
    pub fn deny_cache_max_age(mut self, max_age: Duration) -> Self {
        self.deny_cache_max_age = Some(max_age);
        self
    }

    /// Connects to the server at `url`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] as for [`RedisStore::connect`].
    pub async fn connect(self, url: impl IntoConnectionInfo) -> Result<RedisStore, StoreError> {
        let connection = connect(url)
            .await
            .map_err(|error| StoreError::Unreachable { message: error.to_string() })?;
        script::load_all(&connection).await;
        Ok(self.connection(connection))
    }

    /// Uses a connection that is there already. Its own timeouts apply beside those set here.
    #[must_use]
    pub fn connection(self, connection: ConnectionManager) -> RedisStore {
        let commands = Commands::new(connection, Keys::new(self.prefix), self.response_timeout);
        if !self.deny_cache {
            return RedisStore(Arc::new(commands));
        }
        let mut cache = DenyCache::new(commands);
        if let Some(capacity) = self.deny_cache_capacity {
            cache = cache.capacity(capacity);
        }
        if let Some(max_age) = self.deny_cache_max_age {
            cache = cache.max_age(max_age);
        }
        RedisStore(Arc::new(cache))
    }
}

async fn connect(url: impl IntoConnectionInfo) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECTION_TIMEOUT))
        // Each answer is waited for with a timeout of the store's own.
        .set_response_timeout(None)
        .set_number_of_retries(1);
    ConnectionManager::new_with_config(Client::open(url)?, config).await
}

#[cfg(test)]
pub(super) mod tests {
    use redis_test::server::RedisServer;

    use super::*;

    /// The store that a test gives a clock, without the cache that has a clock of its own.
    pub(in crate::store) use super::commands::Commands;

    /// Connects to a server that has just been started.
    pub(in crate::store) async fn connect(server: &RedisServer) -> ConnectionManager {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(50))
            .set_number_of_retries(200);
        let client = Client::open(server.connection_info()).unwrap();
        ConnectionManager::new_with_config(client, config).await.unwrap()
    }
}
