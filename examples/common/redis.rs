//! [`Redis`]: the servers that everything of an example shares.

use std::time::Duration;

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::cluster::ClusterClient;
use ::redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tower_sliding_window::store::RedisServers;
use tower_sliding_window::{RedisStore, StoreError};

use super::connection::{Connection, Master};

/// How long Redis may take to answer about anything but windows.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long making a connection to Redis may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Servers, and a connection to them: commands of concurrent requests are pipelined.
pub(crate) struct Redis {
    pub(crate) connection: Connection,
    /// The servers' addresses, without what else their URLs hold.
    pub(crate) addresses: String,
    servers: RedisServers,
}

impl Redis {
    /// Connects to the server at a URL, to the cluster that servers at several are part of, or to
    /// the master that Sentinels at these name.
    pub(crate) async fn open(
        urls: Vec<String>,
        sentinel_master: Option<String>,
    ) -> Result<Self, OpenError> {
        let infos = urls.into_iter().map(IntoConnectionInfo::into_connection_info);
        let infos: Vec<ConnectionInfo> =
            infos.collect::<RedisResult<_>>().map_err(OpenError::Url)?;
        let addresses: Vec<String> = infos.iter().map(|info| info.addr().to_string()).collect();
        let addresses = addresses.join(", ");
        let servers = match (&infos[..], &sentinel_master) {
            (_, Some(master)) => RedisServers::sentinel(infos.clone(), master),
            ([one], None) => RedisServers::one(one.clone()),
            (_, None) => RedisServers::cluster(infos.clone()),
        };
        let servers = servers.map_err(OpenError::Windows)?;
        match connect(infos, sentinel_master).await {
            Ok(connection) => Ok(Self { connection, addresses, servers }),
            Err(source) => Err(OpenError::Unusable { addresses, source }),
        }
    }

    /// Opens the store of windows, with keys that begin with `prefix`.
    pub(crate) async fn windows(
        &self,
        prefix: &str,
        response_timeout: Duration,
    ) -> Result<RedisStore, OpenError> {
        RedisStore::builder()
            .prefix(prefix)
            .response_timeout(response_timeout)
            .connect(self.servers.clone())
            .await
            .map_err(OpenError::Windows)
    }

    /// Says that these servers fail.
    pub(crate) fn unusable(&self, source: RedisError) -> OpenError {
        OpenError::Unusable { addresses: self.addresses.clone(), source }
    }
}

async fn connect(
    infos: Vec<ConnectionInfo>,
    sentinel_master: Option<String>,
) -> RedisResult<Connection> {
    if let Some(name) = sentinel_master {
        return Ok(Connection::Master(Master::find(infos, name, RESPONSE_TIMEOUT).await?));
    }
    match <[ConnectionInfo; 1]>::try_from(infos) {
        Ok([info]) => {
            let config = ConnectionManagerConfig::new()
                .set_response_timeout(Some(RESPONSE_TIMEOUT))
                .set_connection_timeout(Some(CONNECTION_TIMEOUT))
                .set_number_of_retries(1);
            let client = Client::open(info)?;
            Ok(Connection::One(ConnectionManager::new_with_config(client, config).await?))
        }
        Err(nodes) => {
            let client = ClusterClient::builder(nodes)
                .connection_timeout(CONNECTION_TIMEOUT)
                .response_timeout(RESPONSE_TIMEOUT)
                .build()?;
            Ok(Connection::Cluster(client.get_async_connection().await?))
        }
    }
}

/// Why an example can't start with the Redis it was given.
///
/// No message shows a URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(
        "the value of --redis is not a Redis URL: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], such as redis://127.0.0.1:6379"
    )]
    Url(RedisError),
    #[error(
        "can't use the Redis at {addresses}: {source}\n\
         hint: start one with `redis-server`, correct --redis, or leave it out to keep everything \
         in this process"
    )]
    Unusable { addresses: String, source: RedisError },
    #[error("can't keep windows in this Redis: {0}\nhint: it has to be 6.2 or later, or Valkey")]
    Windows(StoreError),
}
