//! [`Connection`]: to one server or to a cluster, and [`Connector`], which makes it.

#[cfg(feature = "sentinel")]
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisFuture, RedisResult, Value};

use super::script;

/// Where commands of concurrent requests are pipelined. Clones are one.
#[derive(Clone)]
pub(super) enum Connection {
    One(MultiplexedConnection),
    /// Brought along by the user.
    Managed(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

/// How connections are made.
pub(super) enum Connector {
    One(Box<Client>),
    Managed(ConnectionManager),
    #[cfg(feature = "sentinel")]
    Sentinel(super::servers::Sentinel, AtomicUsize),
    #[cfg(feature = "cluster")]
    Cluster(Box<redis::cluster::ClusterClient>),
}

impl Connector {
    /// Makes a connection, and returns it when it has answered.
    pub(super) async fn connect(&self) -> RedisResult<Connection> {
        // Each answer is waited for with a timeout of the store's own.
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
        script::load_all(&mut connection).await;
        Ok(connection)
    }

    /// Tells whether a connection outlives the failure of one of its servers.
    pub(super) fn heals_itself(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Managed(connection) => connection.req_packed_command(command),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Managed(connection) => connection.req_packed_commands(pipeline, offset, count),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Managed(connection) => connection.get_db(),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
