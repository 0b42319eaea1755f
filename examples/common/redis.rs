//! [`Redis`]: the servers that everything of an example shares.

use std::error::Error;
use std::time::Duration;

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::cluster::ClusterClient;
use ::redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tower_sliding_window::RedisStore;
use tower_sliding_window::store::RedisServers;

use super::connection::{Connection, Master};
use super::prefix::Prefix;

/// How long Redis may take to answer about anything but windows.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long making a connection to Redis may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Servers, and how to connect to them.
pub(crate) struct Redis {
    /// The servers' addresses, without what else their URLs hold.
    pub(crate) addresses: String,
    infos: Vec<ConnectionInfo>,
    sentinel_master: Option<String>,
    servers: RedisServers,
    response_timeout: Duration,
}

impl Redis {
    /// Names the server at a URL, the cluster that servers at several are part of, or the master
    /// that Sentinels at these name.
    pub(crate) fn new(
        urls: &[String],
        sentinel_master: Option<String>,
        response_timeout: Duration,
    ) -> Result<Self, OpenError> {
        let infos = urls.iter().map(|url| url.as_str().into_connection_info());
        let infos: Vec<ConnectionInfo> =
            infos.collect::<RedisResult<_>>().map_err(OpenError::Url)?;
        let addresses: Vec<String> = infos.iter().map(|info| info.addr().to_string()).collect();
        let addresses = addresses.join(", ");
        let servers = match (&infos[..], &sentinel_master) {
            (_, Some(master)) => RedisServers::sentinel(infos.clone(), master),
            ([one], None) => RedisServers::one(one.clone()),
            (_, None) => RedisServers::cluster(infos.clone()),
        };
        let servers = servers.map_err(|source| unusable(&addresses, source))?;
        Ok(Self { addresses, infos, sentinel_master, servers, response_timeout })
    }

    /// Connects for what is no window.
    pub(crate) async fn connection(&self) -> Result<Connection, OpenError> {
        connect(self.infos.clone(), self.sentinel_master.clone())
            .await
            .map_err(|source| self.unusable(source))
    }

    /// Opens the store of windows, with keys that begin with `prefix`.
    pub(crate) async fn windows(&self, prefix: &Prefix) -> Result<RedisStore, OpenError> {
        RedisStore::builder()
            .prefix(&prefix.0)
            .response_timeout(self.response_timeout)
            .connect(self.servers.clone())
            .await
            .map_err(|source| unusable(&self.addresses, source))
    }

    /// Says that these servers fail.
    pub(crate) fn unusable(&self, source: RedisError) -> OpenError {
        unusable(&self.addresses, source)
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

/// Says that servers fail.
fn unusable(addresses: &str, source: impl Error + Send + Sync + 'static) -> OpenError {
    OpenError::Unusable { addresses: addresses.to_owned(), source: Box::new(source) }
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
         hint: start one with `redis-server` (6.2 or later, or Valkey), correct --redis, or leave it \
         out to keep everything in this process"
    )]
    Unusable { addresses: String, source: Box<dyn Error + Send + Sync> },
}
