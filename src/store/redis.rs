//! [`RedisStore`]: the windows of a fleet.

mod keys;
mod reply;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo};

use self::keys::Keys;
use self::script::{ADMIT, CANCEL, Script};
use super::{Check, Partition, Store, StoreFuture, Verdict};
use crate::error::StoreError;

/// What the Redis keys begin with unless told otherwise.
const DEFAULT_PREFIX: &str = "tsw";
/// How long an answer may take unless told otherwise.
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(50);
/// How long making a connection may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps the windows on a Redis server, shared by every process that uses it with one prefix.
///
/// A cheap handle: clones share the connection.
///
/// ## Behavior
///
/// - One script call a decision, atomic over all windows of the request. Requires Redis 6.2 or
///   later, or Valkey.
/// - Time is Redis's own, in microseconds: the servers' clocks do not matter.
/// - Every key has a TTL of its policy's longest window. A window is one ZSET named
///   `PREFIX:{=KEY}:POLICY`, `%` and `}` in the key written as `%25` and `%7D`.
/// - Commands of concurrent requests share one connection, which is made again in the background
///   when it breaks. Calls meanwhile fail with a [`StoreError`].
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
pub struct RedisStore(Arc<Inner>);

struct Inner {
    connection: ConnectionManager,
    keys: Keys,
    admit: &'static Script,
}

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
    #[must_use]
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Uses a connection that is there already.
    ///
    /// Its own response timeout applies.
    #[must_use]
    pub fn from_connection(connection: ConnectionManager) -> Self {
        Self::builder().connection(connection)
    }

    fn ask(&self, check: &Check, mode: &'static str) -> StoreFuture<Verdict> {
        let admit = self.0.admit;
        let mut command = admit.command(check.partitions.len());
        for partition in &check.partitions {
            command.arg(self.0.keys.window(partition));
        }
        command.arg(check.id.as_bytes()).arg(check.cost).arg(mode);
        command.arg(u8::from(check.wants_reset));
        for partition in &check.partitions {
            let quotas = partition.policy.quotas();
            command.arg(quotas.len());
            for quota in quotas {
                command.arg(quota.limit()).arg(quota.window_us());
            }
        }
        let quotas = check.partitions.iter().map(|part| part.policy.quotas().len()).sum();
        let mut connection = self.0.connection.clone();
        StoreFuture::later(async move {
            reply::verdict(admit.run(&command, &mut connection).await?, quotas)
        })
    }
}

#[cfg(test)]
impl RedisStore {
    /// Returns a store whose script reads the hash `clock` (fields `s` and `us`) where the shipped
    /// one asks for `TIME`, and which is the shipped one otherwise.
    pub(super) fn with_clock(connection: ConnectionManager, clock: &str) -> Self {
        let shipped = include_str!("../../lua/admit.lua");
        let asks = "call('TIME')";
        assert_eq!(shipped.matches(asks).count(), 1, "TIME is called once");
        let code = shipped.replace(asks, &format!("call('HMGET', '{clock}', 's', 'us')"));
        Self(Arc::new(Inner {
            connection,
            keys: Keys::new(clock.to_owned()),
            admit: Box::leak(Box::new(Script::new(&code))),
        }))
    }
}

impl Store for RedisStore {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        self.ask(check, if check.repeated { "repeat" } else { "new" })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        self.ask(check, "peek")
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        let mut command = CANCEL.command(check.partitions.len());
        for partition in &check.partitions {
            command.arg(self.0.keys.window(partition));
        }
        command.arg(check.id.as_bytes()).arg(check.cost);
        let mut connection = self.0.connection.clone();
        StoreFuture::later(async move {
            let removed: u64 = reply::read(&CANCEL.run(&command, &mut connection).await?)?;
            Ok(removed > 0)
        })
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let mut command = redis::cmd("DEL");
        for partition in partitions {
            command.arg(self.0.keys.window(partition));
        }
        let mut connection = self.0.connection.clone();
        StoreFuture::later(async move {
            command.exec_async(&mut connection).await.map_err(reply::error)
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The connection's own output may hold a password.
        f.debug_struct("RedisStore").field("keys", &self.0.keys).finish_non_exhaustive()
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
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self { prefix: DEFAULT_PREFIX.to_owned(), response_timeout: DEFAULT_RESPONSE_TIMEOUT }
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

    /// Sets how long an answer may take. Defaults to 50 ms.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Connects to the server at `url`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] as for [`RedisStore::connect`].
    pub async fn connect(self, url: impl IntoConnectionInfo) -> Result<RedisStore, StoreError> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECTION_TIMEOUT))
            .set_response_timeout(Some(self.response_timeout))
            .set_number_of_retries(1);
        let connect =
            async { ConnectionManager::new_with_config(Client::open(url)?, config).await };
        let connection = connect
            .await
            .map_err(|error| StoreError::Unreachable { message: error.to_string() })?;
        Ok(self.connection(connection))
    }

    /// Uses a connection that is there already, whose own response timeout applies.
    #[must_use]
    pub fn connection(self, connection: ConnectionManager) -> RedisStore {
        RedisStore(Arc::new(Inner { connection, keys: Keys::new(self.prefix), admit: &ADMIT }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use redis_test::server::RedisServer;

    use super::*;

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
