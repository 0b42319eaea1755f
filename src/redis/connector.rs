//! [`Connector`]: makes connections.

#[cfg(feature = "sentinel")]
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::aio::ConnectionManager;
use redis::{AsyncConnectionConfig, Client, RedisResult};

use super::connection::Connection;
use super::scripts::Scripts;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinel;

/// How connections are made.
pub(crate) enum Connector {
    One(Box<Client>),
    Managed(ConnectionManager),
    #[cfg(feature = "sentinel")]
    Sentinel(Sentinel, AtomicUsize),
    #[cfg(feature = "cluster")]
    Cluster(Box<redis::cluster::ClusterClient>),
}

impl Connector {
    /// Makes a connection, and returns it when the server has replied to a PING.
    pub(super) async fn connect(&self) -> RedisResult<Connection> {
        // The circuit breaker applies its own timeouts.
        let config =
            || AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let mut connection = match self {
            Self::One(client) => Connection::One(
                client.get_multiplexed_async_connection_with_config(&config()).await?,
            ),
            Self::Managed(manager) => Connection::Managed(manager.clone()),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel, attempts) => {
                let master = sentinel.master(attempts.fetch_add(1, Ordering::Relaxed)).await?;
                Connection::One(
                    master.get_multiplexed_async_connection_with_config(&config()).await?,
                )
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        };
        redis::cmd("PING").exec_async(&mut connection).await?;
        Scripts::shipped().load(&mut connection).await;
        Ok(connection)
    }

    /// Returns whether a connection has several servers and survives the failure of one of them.
    pub(super) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}
