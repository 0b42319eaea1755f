//! [`RedisStore`]: logs on a Redis server, shared by a fleet.

mod bans;
mod builder;
#[cfg(feature = "cluster")]
mod cross_slot;
mod direct;
mod explain;
mod reply;
mod requests;

use std::fmt;
use std::sync::Arc;

use redis::aio::ConnectionManager;

pub use self::builder::RedisStoreBuilder;
#[cfg(test)]
pub(crate) use self::direct::DirectStore;
use super::{LogSnapshot, MemoryStore, Restored, Store, StoreFuture};
use crate::error::StoreError;
use crate::redis::{Client, RedisCommands, RedisServers};
use crate::window::{Check, Explanation, LogId, Outcome};

/// A store on Redis. All processes that use it with the same prefix share the logs.
///
/// A cheap handle: clones share the connection and the deny cache.
///
/// ## Behavior
///
/// - A decision is one script call, atomic over all logs of the request. Requires Redis 6.2 or
///   later, or Valkey.
/// - Concurrent checks share script calls: what comes while a call is under way goes to Redis together
///   with the next, up to 32 checks at a time. A lone check is sent at once. Each check keeps its own
///   identity, time limit and repetition, and an error of one log concerns no other check. A check
///   shares a call if it has cost 1, one log and one quota of whole seconds, and neither a candidate
///   nor a penalty, as most have. On a Cluster checks share no calls.
/// - The clock is that of Redis, in microseconds. The clocks of the processes do not matter.
/// - When a key was denied, this process denies it again from memory for as long as Redis would
///   certainly deny it, and for at most a second: see [`DenyCache`](super::DenyCache).
/// - A check whose reply is lost is sent once more under the same identity, and counts once.
/// - Every Redis key has a TTL. A log expires its policy's longest window and a second after its newest
///   entry. A log is one ZSET named `PREFIX:{=KEY}:POLICY`, with `%` and `}` in the key written as
///   `%25` and `%7D`. A policy without a name is named `default:QUOTAS`. Where policies with different
///   windows share a log, it has a member of negative score for each window in use. Beside a log
///   there may be the keys `:ban` and `:strikes`, and the marks `:reset` and `:lifted`, by which other
///   processes learn of a reset and of a lifted ban.
/// - Concurrent requests share one connection. If it breaks, or is silent for 500 ms while calls
///   wait, it is given up and made again in the background, one attempt at a time, with pauses of
///   up to half a second. Until then no request waits for Redis.
/// - When Redis can't decide, the [`FailurePolicy`](crate::FailurePolicy) does. With `Local`, the
///   default, logs in this process decide, which hold what this process has admitted. When Redis
///   replies again, the first check of a log writes back what Redis lacks, under the identities of
///   the requests, and cancels requests that were refused but that Redis may have counted. Then
///   Redis decides again, however busy the log is. If Redis has lost its data, the next check of
///   each key writes back what this process knows of the key. Logs that other processes have reset
///   and bans that they have lifted in the meantime stay reset and lifted.
/// - A connection passed to [`RedisStore::from_connection`] may reconnect without notice. So each
///   admission on it is compared with the local log, as after an outage.
///
/// ## Under paused time
///
/// Test with real time, not with tokio's paused clock (`start_paused = true`). The response timeout
/// and the deny cache follow tokio's clock, while Redis has its own. A paused clock jumps to the
/// next timer when all tasks wait, so each call to Redis times out at once. `tokio::time::advance`
/// does not move the windows in Redis.
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
    /// The layers that decide: failover, deny cache, Redis.
    logs: Arc<dyn Store>,
    local: MemoryStore,
    client: Client,
}

impl RedisStore {
    /// Connects to a server, such as `redis://:password@127.0.0.1:6379/0`, or to [`RedisServers`].
    ///
    /// It fails if the server does not reply now. A service that may start before its Redis does uses
    /// [`RedisStore::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the server can't be reached, the URL is wrong, or the server
    /// does not accept the credentials.
    pub async fn connect<T>(servers: T) -> Result<Self, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        Self::builder().connect(servers).await
    }

    /// Connects in the background, so that a service can start before its Redis does.
    ///
    /// Until the store is connected, the failure policies decide.
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

    /// Returns the client, with which other parts of the crate keep their data in Redis.
    #[cfg(any(feature = "storm", feature = "moderation"))]
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a handle for the application's own commands on the connection of this store.
    #[must_use]
    pub fn commands(&self) -> RedisCommands {
        RedisCommands::new(self.client.beside())
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Uses an existing connection, with the default settings otherwise.
    #[must_use]
    pub fn from_connection(connection: ConnectionManager) -> Self {
        Self::builder().connection(connection)
    }
}

#[cfg(all(test, any(feature = "storm", feature = "moderation")))]
impl RedisStore {
    /// Replaces the clock of the scripts for storms and speech, see [`Client::with_clock`].
    pub(crate) fn with_clock(mut self, clock: &str) -> Self {
        self.client = self.client.with_clock(clock);
        self
    }
}

impl Store for RedisStore {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        self.logs.admit(check)
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.logs.peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        self.logs.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        self.logs.settle(check, cost)
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        self.logs.restore(log, snapshot)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.logs.reset(logs)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The debug output of the connection may contain a password.
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}
