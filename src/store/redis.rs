//! [`RedisStore`]: the windows of a fleet.

mod application;
mod bans;
mod calls;
mod commands;
mod connection;
#[cfg(feature = "cluster")]
mod in_turn;
mod keys;
mod link;
mod reply;
mod script;
mod servers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;

pub use self::application::{RedisCommands, RedisScript};
pub(crate) use self::calls::Calls;
use self::commands::Commands;
use self::connection::{Connection, Connector};
use self::keys::Keys;
use self::link::Link;
pub(crate) use self::reply::read;
pub(crate) use self::script::Script;
pub use self::servers::RedisServers;
use super::failover::{Failover, Outage};
use super::{
    Check, DenyCache, KnownLog, MemoryStore, Partition, Restored, Store, StoreFuture, Verdict,
};
use crate::error::StoreError;

/// What the Redis keys begin with unless told otherwise.
const DEFAULT_PREFIX: &str = "tsw";
/// How long an answer may take unless told otherwise.
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(50);
/// How many windows this process keeps beside Redis unless told otherwise.
const DEFAULT_LOCAL_CAPACITY: usize = 1_000_000;

/// Keeps the windows on a Redis server, shared by every process that uses it with one prefix.
///
/// A cheap handle: clones share the connection and the deny cache.
///
/// ## Behavior
///
/// - One script call a decision, atomic over all windows of the request. Requires Redis 6.2 or
///   later, or Valkey.
/// - Time is Redis's own, in microseconds: the servers' clocks do not matter.
/// - A key that was denied is denied again from this process's memory while Redis would deny it for
///   certain, and for a second at the most, see [`DenyCache`].
/// - A check whose answer is lost is asked again, once, under the same identity, and counts once.
/// - Every key has a TTL: a window that of its policy's longest quota and 999 ms. It is one ZSET named
///   `PREFIX:{=KEY}:POLICY`, `%` and `}` in the key written as `%25` and `%7D`; a policy without a
///   name stands there as `default:QUOTAS`. Beside it there may be `:ban` and `:strikes`, and the marks
///   `:reset` and `:lifted`, which tell other processes what was reset or lifted.
/// - Commands of concurrent requests share one connection. When it breaks, or five answers in a row
///   fail to come, it is given up and made again in the background, one attempt at a time, after
///   pauses of up to half a second. Until then no request waits for Redis.
/// - What Redis can't answer is for the [`FailurePolicy`](crate::FailurePolicy) to decide. With
///   `Local`, the default, logs in this process do, which know what this process has admitted. When
///   Redis answers again, the first check of a log tells it what it lacks, under the requests' own
///   identities, and what it may have counted of requests that were refused is taken back; then Redis
///   decides again, however busy the log is. If it has lost its memory, it is told what this process
///   knows of each key as that comes again. What another process has reset or lifted meanwhile stays
///   reset and lifted.
/// - A connection that was brought along ([`RedisStore::from_connection`]) may reconnect unseen. So
///   each admission on it is compared with what this process knows, as after an outage.
///
/// ## Under paused time
///
/// Test with real time, not under tokio's paused clock (`start_paused = true`). The response timeout
/// and the deny cache follow tokio's clock, while Redis has its own. A paused clock jumps to the next
/// timer whenever all tasks wait, so that each call to Redis times out at once; and
/// `tokio::time::advance` does not move the windows.
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
pub struct RedisStore {
    windows: Arc<dyn Store>,
    /// Those in this process.
    local: MemoryStore,
    calls: Calls,
}

impl RedisStore {
    /// Connects to a server, such as that at `redis://:password@127.0.0.1:6379/0`, or to
    /// [`RedisServers`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if there is no server, the URL is wrong, or the server does
    /// not accept the credentials.
    pub async fn connect<T>(servers: T) -> Result<Self, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        Self::builder().connect(servers).await
    }

    /// Connects in the background, so that a service can start before its Redis does.
    ///
    /// Until the connection is there, the failure policies decide.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the URL is wrong.
    pub fn connect_lazy<T>(servers: T) -> Result<Self, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        Self::builder().connect_lazy(servers)
    }

    /// Returns a handle for the application's own commands on the connection of this store.
    #[must_use]
    pub fn commands(&self) -> RedisCommands {
        RedisCommands::new(self.calls.clone())
    }

    /// Returns what other things than windows are kept by.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
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
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        self.windows.admit(check)
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        self.windows.peek(check)
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        self.windows.cancel(check)
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        self.windows.restore(log, known)
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        self.windows.reset(partitions)
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
    local_capacity: usize,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            response_timeout: DEFAULT_RESPONSE_TIMEOUT,
            deny_cache: true,
            deny_cache_capacity: None,
            deny_cache_max_age: None,
            local_capacity: DEFAULT_LOCAL_CAPACITY,
        }
    }
}

impl RedisStoreBuilder {
    /// Sets what the Redis keys begin with. Defaults to `tsw`.
    ///
    /// # Panics
    ///
    /// If it has a brace, which would move the keys to other cluster slots.
    #[track_caller]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        assert!(
            !self.prefix.contains(['{', '}']),
            "`prefix` has a brace, which would move keys to other cluster slots"
        );
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

    /// Sets how many logs this process keeps beside Redis, for an outage. Defaults to a million.
    ///
    /// They are the logs of the keys that this process has admitted requests of. A log takes about
    /// 110 bytes with one admission and about 240 with five, until its last admission is one window
    /// old.
    ///
    /// At the capacity a key without a log here is served by Redis as ever, but can't be in an
    /// outage: then only the policies `Open` and `Closed` answer it. A client that invents user ids
    /// fills the logs as it fills a [`MemoryStore`], and gets the same warning and metrics: see
    /// [`MemoryStore::with_capacity`] for the arithmetic and the remedy.
    pub fn local_capacity(mut self, capacity: usize) -> Self {
        self.local_capacity = capacity;
        self
    }

    /// Connects to the servers, such as the one at a URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] as for [`RedisStore::connect`].
    pub async fn connect<T>(self, servers: T) -> Result<RedisStore, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        let (store, link) = self.build(servers.try_into()?)?;
        link.connect().await?;
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
        let (store, link) = self.build(servers.try_into()?)?;
        link.connect_soon();
        Ok(store)
    }

    /// Uses a connection that is there already. Its own timeouts apply beside those set here.
    #[must_use]
    pub fn connection(self, connection: ConnectionManager) -> RedisStore {
        let outage = Outage::new();
        outage.may_be_unseen();
        let connector = Connector::Managed(connection.clone());
        let link = Link::idle(connector, self.response_timeout, outage.clone());
        link.ready(Connection::Managed(connection));
        let calls = Calls::new(link, Keys::new(self.prefix.clone()));
        let commands = Commands::new(calls.clone(), Keys::new(self.prefix.clone()));
        self.store(commands, outage, calls)
    }

    fn build(self, servers: RedisServers) -> Result<(RedisStore, Link), StoreError> {
        let outage = Outage::new();
        #[cfg(feature = "cluster")]
        let is_cluster = servers.is_cluster();
        let connector = servers.connector(self.response_timeout, &outage)?;
        let link = Link::idle(connector, self.response_timeout, outage.clone());
        let calls = Calls::new(link.clone(), Keys::new(self.prefix.clone()));
        let commands = Commands::new(calls.clone(), Keys::new(self.prefix.clone()));
        #[cfg(feature = "cluster")]
        if is_cluster {
            let in_turn = in_turn::InTurn::new(commands.sent_twice());
            return Ok((self.store(in_turn, outage, calls), link));
        }
        Ok((self.store(commands, outage, calls), link))
    }

    fn store(self, store: impl Store, outage: Outage, calls: Calls) -> RedisStore {
        let local = MemoryStore::with_capacity(self.local_capacity);
        if !self.deny_cache {
            let windows = Arc::new(Failover::new(store, local.clone(), outage));
            return RedisStore { windows, local, calls };
        }
        let mut cache = DenyCache::new(store);
        if let Some(capacity) = self.deny_cache_capacity {
            cache = cache.capacity(capacity);
        }
        if let Some(max_age) = self.deny_cache_max_age {
            cache = cache.max_age(max_age);
        }
        let windows = Arc::new(Failover::new(cache, local.clone(), outage));
        RedisStore { windows, local, calls }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    /// The store that a test gives a clock, without the cache that has a clock of its own.
    pub(in crate::store) use super::commands::Commands;
}
