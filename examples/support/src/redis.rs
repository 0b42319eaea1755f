//! [`Connected`]: the Redis that a server uses.

use std::error::Error;

use ::redis::{ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tower_sliding_window::{RedisServers, RedisStore, StoreError};

use crate::flags::RedisFlags;

/// A Redis that has answered.
pub struct Connected {
    /// The windows, and the connection for the server's own commands.
    pub store: RedisStore,
    /// The addresses of the servers, without what else their URLs hold.
    pub addresses: String,
}

impl Connected {
    /// Says that this Redis fails.
    pub fn unusable(&self, source: StoreError) -> OpenError {
        OpenError::Unusable { addresses: self.addresses.clone(), source: Box::new(source) }
    }
}

impl RedisFlags {
    /// Connects to the Redis that the flags name, if they name one: to the server at a URL, to the
    /// Cluster of several, or to the master that Sentinels name.
    pub async fn connect(&self) -> Result<Option<Connected>, OpenError> {
        let infos = self.redis.iter().map(|url| url.as_str().into_connection_info());
        let infos: Vec<ConnectionInfo> =
            infos.collect::<RedisResult<_>>().map_err(OpenError::Url)?;
        let addresses: Vec<String> = infos.iter().map(|info| info.addr().to_string()).collect();
        let addresses = addresses.join(", ");
        let servers = match (&self.redis[..], self.sentinel_master.as_deref()) {
            ([], _) => return Ok(None),
            (urls, Some(master)) => {
                let (login, name) = master.rsplit_once('@').unwrap_or((":", master));
                let login = login.split_once(':').ok_or(OpenError::Login)?;
                let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
                RedisServers::sentinel(urls, name)
                    .map(|servers| servers.master_credentials(some(login.0), some(login.1)))
            }
            ([url], None) => RedisServers::one(url),
            (urls, None) => RedisServers::cluster(urls),
        };
        let builder =
            RedisStore::builder().prefix(&self.prefix).response_timeout(self.response_timeout);
        let unusable = |source| OpenError::Unusable { addresses: addresses.clone(), source };
        let servers = servers.map_err(|error| unusable(error.into()))?;
        let store = builder.connect(servers).await.map_err(|error| unusable(error.into()))?;
        Ok(Some(Connected { store, addresses }))
    }
}

/// Why a server can't start with the Redis it was given.
///
/// No message shows a URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OpenError {
    #[error(
        "the value of --redis is not a Redis URL: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], such as redis://127.0.0.1:6379, and in a password \
         / @ # ? % as %2F %40 %23 %3F %25; rediss:// needs a server built with `--features tls`"
    )]
    Url(RedisError),
    #[error(
        "the value of --sentinel-master has a login without `:`\n\
         hint: write USER:PASSWORD@NAME, or :PASSWORD@NAME for a password alone"
    )]
    Login,
    #[error(
        "can't use the Redis at {addresses}: {source}\n\
         hint: start one with `redis-server` (6.2 or later, or Valkey), correct --redis (several nodes of a \
         Cluster, or Sentinels with --sentinel-master), or leave it out to keep everything in this process"
    )]
    Unusable { addresses: String, source: Box<dyn Error + Send + Sync> },
}
