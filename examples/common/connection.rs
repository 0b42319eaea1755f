//! [`Connection`]: to one Redis server, to a cluster, or to the master that Sentinels name.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClient, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult,
    Value,
};
use tokio::sync::{Mutex, RwLock};

/// Where commands of concurrent requests are pipelined. Clones are one.
#[derive(Clone)]
pub(crate) enum Connection {
    One(ConnectionManager),
    Cluster(ClusterConnection),
    Master(Master),
}

/// The master that Sentinels name, found anew when it fails or is a master no longer.
#[derive(Clone)]
pub(crate) struct Master(Arc<Watched>);

struct Watched {
    sentinels: Mutex<SentinelClient>,
    current: RwLock<MultiplexedConnection>,
    config: AsyncConnectionConfig,
}

impl Master {
    /// Asks the Sentinels for the master of that name.
    pub(crate) async fn find(
        sentinels: Vec<ConnectionInfo>,
        name: String,
        response_timeout: Duration,
    ) -> RedisResult<Self> {
        let mut sentinels =
            SentinelClient::build(sentinels, name, None, SentinelServerType::Master)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(response_timeout));
        let current = sentinels.get_async_connection_with_config(&config).await?;
        let (sentinels, current) = (Mutex::new(sentinels), RwLock::new(current));
        Ok(Self(Arc::new(Watched { sentinels, current, config })))
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.0.current.read().await.clone();
        let reply = connection.req_packed_command(command).await;
        self.notice(reply.as_ref().err());
        reply
    }

    async fn send_all(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut connection = self.0.current.read().await.clone();
        let replies = connection.req_packed_commands(pipeline, offset, count).await;
        self.notice(replies.as_ref().err());
        replies
    }

    /// Finds the master anew if that may help, one search at a time.
    fn notice(&self, error: Option<&RedisError>) {
        let gone = |error: &RedisError| error.is_io_error() || error.code() == Some("READONLY");
        if error.is_some_and(gone) {
            let watched = self.0.clone();
            tokio::spawn(async move {
                let Ok(mut sentinels) = watched.sentinels.try_lock() else { return };
                if let Ok(found) = sentinels.get_async_connection_with_config(&watched.config).await
                {
                    *watched.current.write().await = found;
                }
            });
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
            Self::Master(master) => Box::pin(master.send(command)),
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
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Master(master) => Box::pin(master.send_all(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        0
    }
}
