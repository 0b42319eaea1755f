//! [`Redis`]: the connection that everything of an example shares.

use std::time::Duration;

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult,
};
use tower_sliding_window::RedisStore;

/// How long Redis may take to answer. The examples would rather wait than turn people away.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long making a connection to Redis may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to Redis: commands of concurrent requests are pipelined.
pub(crate) struct Redis {
    pub(crate) connection: ConnectionManager,
    pub(crate) address: ConnectionAddr,
}

impl Redis {
    /// Connects to the server at a URL.
    pub(crate) async fn open(url: String) -> Result<Self, OpenError> {
        let target = url.into_connection_info().map_err(OpenError::Url)?;
        let address = target.addr().clone();
        match connect(target).await {
            Ok(connection) => Ok(Self { connection, address }),
            Err(source) => Err(OpenError::Unusable { address, source }),
        }
    }

    /// Makes the store of windows, with keys that begin with `prefix`.
    pub(crate) fn windows(&self, prefix: &str) -> RedisStore {
        RedisStore::builder()
            .prefix(prefix)
            .response_timeout(RESPONSE_TIMEOUT)
            .connection(self.connection.clone())
    }

    /// Says that this server fails.
    pub(crate) fn unusable(&self, source: RedisError) -> OpenError {
        OpenError::Unusable { address: self.address.clone(), source }
    }
}

async fn connect(target: ConnectionInfo) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_connection_timeout(Some(CONNECTION_TIMEOUT))
        .set_number_of_retries(1);
    ConnectionManager::new_with_config(Client::open(target)?, config).await
}

/// Why an example can't start with the Redis it was given.
///
/// No message shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(
        "the value of --redis is not a Redis URL: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], such as redis://127.0.0.1:6379"
    )]
    Url(RedisError),
    #[error(
        "can't use the Redis at {address}: {source}\n\
         hint: start one with `redis-server`, correct --redis, or leave it out to keep everything \
         in this process"
    )]
    Unusable { address: ConnectionAddr, source: RedisError },
}
